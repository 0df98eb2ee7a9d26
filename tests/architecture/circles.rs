//! Which file takes a name from which, and whether that runs in a circle.
//!
//! An edge is a name that a file uses and another one defines: a re-export is followed to the
//! definition. Declaring a module and passing its names on is no use of it. A file that hands its
//! children what it defines, and uses them, is in a circle with them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::source::{Token, paths, without_tests};
use super::{all_sources, files_of_test_modules, module_path, tokens};

/// Words after which an item's name stands.
const ITEMS: [&str; 9] = [
    "fn", "struct", "enum", "trait", "type", "const", "static", "mod", "union",
];

/// One file: what it defines, what it imports under which name, and every path it uses.
#[derive(Debug, Default)]
struct File {
    path: PathBuf,
    defines: BTreeSet<String>,
    /// The imported name and the absolute path it stands for; `*` for a whole module.
    imports: Vec<(String, Vec<String>)>,
    /// Absolute paths that the code uses, re-exports that it does not use itself left out.
    uses: BTreeSet<Vec<String>>,
}

type Files = BTreeMap<Vec<String>, File>;

#[test]
fn no_files_depend_on_each_other_in_a_circle() {
    let sources = all_sources();
    let tests_only = files_of_test_modules(&sources);
    let product = sources
        .into_iter()
        .filter(|(path, _)| !tests_only.iter().any(|root| path.starts_with(root)));
    let circles = circles(&edges(&read_files(product)));
    assert!(circles.is_empty(), "\n{}", circles.join("\n"));
}

#[test]
fn a_planted_circle_is_found_and_a_re_export_alone_is_allowed() {
    let circle = [
        ("src/a.rs", "mod b;\npub struct Bag;\nfn f() { b::g() }"),
        ("src/a/b.rs", "use super::Bag;\npub fn g() {}"),
    ];
    assert_eq!(planted(&circle), ["src/a/b.rs <-> src/a.rs"]);
    let hidden = [
        (
            "src/a.rs",
            "mod b;\npub use self::b::G;\npub struct Bag(G);",
        ),
        ("src/a/b.rs", "pub struct G;\nfn f(bag: &super::Bag) {}"),
    ];
    assert_eq!(planted(&hidden), ["src/a/b.rs <-> src/a.rs"]);
    let through_a_re_export = [
        (
            "src/a.rs",
            "mod b;\nmod c;\npub use self::b::G;\npub use self::c::H;",
        ),
        ("src/a/b.rs", "pub struct G;\nuse super::H;"),
        ("src/a/c.rs", "pub struct H(super::G);"),
    ];
    assert_eq!(planted(&through_a_re_export), ["src/a/b.rs <-> src/a/c.rs"]);
    let none = [
        ("src/a.rs", "mod b;\npub use self::b::G;\npub struct Bag;"),
        ("src/a/b.rs", "use super::Bag;\npub struct G(Bag);"),
    ];
    assert_eq!(planted(&none), [""; 0]);
}

fn planted(files: &[(&str, &str)]) -> Vec<String> {
    let sources = files
        .iter()
        .map(|(path, text)| (PathBuf::from(path), (*text).to_owned()));
    circles(&edges(&read_files(sources)))
}

fn read_files(sources: impl Iterator<Item = (PathBuf, String)>) -> Files {
    sources
        .map(|(path, text)| (module_path(&path), read_file(path, &text)))
        .collect()
}

fn read_file(path: PathBuf, text: &str) -> File {
    let module = module_path(&path);
    let tokens = without_tests(&tokens(text));
    let mut file = File {
        defines: definitions(&tokens),
        path,
        ..File::default()
    };
    let (imports, code) = split_imports(&tokens);
    for import in &imports {
        for used in paths(&import.tokens) {
            let Some(absolute) = absolute(&module, &used.segments, &file.defines, &[]) else {
                continue;
            };
            let name = match used.segments.last().map(String::as_str) {
                Some("self") => used.segments.iter().rev().nth(1).cloned(),
                last => last.map(ToOwned::to_owned),
            };
            let absolute: Vec<String> = absolute.into_iter().filter(|s| s != "self").collect();
            let name = import.renamed(&used.segments).or(name).unwrap_or_default();
            if !import.exported || is_used(&code, &name) {
                file.uses.insert(absolute.clone());
            }
            file.imports.push((name, absolute));
        }
    }
    for used in paths(&code) {
        if let Some(absolute) = absolute(&module, &used.segments, &file.defines, &file.imports) {
            file.uses.insert(absolute);
        }
    }
    file
}

/// Whether the code uses an imported name; a field or a module of that name is another thing.
fn is_used(code: &[Token], name: &str) -> bool {
    code.iter().enumerate().any(|(at, token)| {
        let before = at.checked_sub(1).map(|before| code[before].text.as_str());
        token.text == name && !matches!(before, Some("." | "mod"))
    })
}

/// One `use` declaration.
struct Import {
    exported: bool,
    tokens: Vec<Token>,
}

impl Import {
    /// The name behind `as`, if this path has one.
    fn renamed(&self, segments: &[String]) -> Option<String> {
        let last = segments.last()?;
        self.tokens
            .windows(3)
            .find(|three| three[0].text == *last && three[1].text == "as")
            .map(|three| three[2].text.clone())
    }
}

/// The `use` declarations, and all other tokens.
fn split_imports(tokens: &[Token]) -> (Vec<Import>, Vec<Token>) {
    let (mut imports, mut code) = (Vec::new(), Vec::new());
    let mut at = 0;
    while at < tokens.len() {
        if tokens[at].text == "use" {
            let length = tokens[at..]
                .iter()
                .take_while(|token| token.text != ";")
                .count();
            let before = at.checked_sub(1).map(|before| tokens[before].text.as_str());
            imports.push(Import {
                exported: matches!(before, Some("pub" | ")")),
                tokens: tokens[at + 1..at + length].to_vec(),
            });
            at += length;
        } else {
            code.push(tokens[at].clone());
        }
        at += 1;
    }
    (imports, code)
}

fn definitions(tokens: &[Token]) -> BTreeSet<String> {
    let after = |at: usize, word: &str| tokens.get(at).is_some_and(|token| token.text == word);
    let mut found = BTreeSet::new();
    for (at, token) in tokens.iter().enumerate() {
        let Some(next) = tokens.get(at + 1) else {
            break;
        };
        if ITEMS.contains(&token.text.as_str()) {
            found.insert(next.text.clone());
        }
        if token.text == "macro_rules" && after(at + 1, "!") {
            found.extend(tokens.get(at + 2).map(|name| name.text.clone()));
        }
    }
    found
}

/// A path of ours from the root of its package, `None` for one that leads elsewhere.
fn absolute(
    module: &[String],
    segments: &[String],
    defines: &BTreeSet<String>,
    imports: &[(String, Vec<String>)],
) -> Option<Vec<String>> {
    let provider = module
        .first()
        .filter(|top_module| *top_module == "provider");
    let supers = segments.iter().take_while(|part| *part == "super").count();
    let first = segments.first()?;
    let own = |from: &[String], rest: &[String]| Some([from, rest].concat());
    match first.as_str() {
        "crate" => own(provider.as_slice_of_one(), &segments[1..]),
        "diarist_core" => own(&[], &segments[1..]),
        "diarist_provider" => own(&["provider".to_owned()], &segments[1..]),
        "self" => own(module, &segments[1..]),
        "super" => own(
            module.get(..module.len().checked_sub(supers)?)?,
            &segments[supers..],
        ),
        name => {
            if let Some((_, path)) = imports.iter().find(|(imported, _)| imported == name) {
                return own(path, &segments[1..]);
            }
            // A module that this file declares; a type of its own leads nowhere else.
            defines.contains(name).then(|| [module, segments].concat())
        }
    }
}

trait SliceOfOne {
    fn as_slice_of_one(&self) -> &[String];
}

impl SliceOfOne for Option<&String> {
    fn as_slice_of_one(&self) -> &[String] {
        self.map_or(&[], std::slice::from_ref)
    }
}

/// From which file to which, each with one of the names.
fn edges(files: &Files) -> BTreeMap<&Path, BTreeMap<&Path, String>> {
    let mut edges: BTreeMap<&Path, BTreeMap<&Path, String>> = BTreeMap::new();
    for (module, file) in files {
        for path in &file.uses {
            if let Some((target, name)) = definition(files, path, 0)
                && target != module
            {
                let targets = edges.entry(&file.path).or_default();
                targets.insert(&files[target].path, name);
            }
        }
    }
    edges
}

/// The module of the file that defines what `path` names.
fn definition<'a>(
    files: &'a Files,
    path: &[String],
    depth: usize,
) -> Option<(&'a Vec<String>, String)> {
    let length = (1..=path.len())
        .rev()
        .find(|&length| files.contains_key(&path[..length]))?;
    let (module, file) = files.get_key_value(&path[..length])?;
    let Some(name) = path.get(length) else {
        return Some((module, path.join("::")));
    };
    let import = file.imports.iter().find(|(imported, _)| imported == name);
    match import {
        Some((_, target)) if !file.defines.contains(name) && depth < 8 => {
            let rest = &path[length + 1..];
            definition(files, &[target.as_slice(), rest].concat(), depth + 1)
        }
        _ => Some((module, name.clone())),
    }
}

/// Every set of files from each of which every other one can be reached.
fn circles(edges: &BTreeMap<&Path, BTreeMap<&Path, String>>) -> Vec<String> {
    let reached: BTreeMap<&Path, BTreeSet<&Path>> = edges
        .keys()
        .map(|file| (*file, reachable(edges, file)))
        .collect();
    let mut visited = BTreeSet::new();
    let mut found = Vec::new();
    for (file, targets) in &reached {
        if !targets.contains(file) || !visited.insert(*file) {
            continue;
        }
        let others = targets
            .iter()
            .filter(|target| reached.get(*target).is_some_and(|back| back.contains(file)));
        let circle: BTreeSet<&Path> = others.copied().chain([*file]).collect();
        visited.extend(&circle);
        let names = circle.iter().map(|file| file.display().to_string());
        let mut line = names.collect::<Vec<_>>().join(" <-> ");
        if circle.len() > 2 {
            for from in &circle {
                for (to, name) in edges[from].iter().filter(|(to, _)| circle.contains(*to)) {
                    line += &format!("\n    {} -> {}: {name}", from.display(), to.display());
                }
            }
        }
        found.push(line);
    }
    found
}

fn reachable<'a>(
    edges: &BTreeMap<&'a Path, BTreeMap<&'a Path, String>>,
    from: &Path,
) -> BTreeSet<&'a Path> {
    let mut reached = BTreeSet::new();
    let mut waiting: Vec<&Path> = vec![from];
    while let Some(file) = waiting.pop() {
        for target in edges.get(file).into_iter().flat_map(BTreeMap::keys) {
            if reached.insert(*target) {
                waiting.push(target);
            }
        }
    }
    reached
}
