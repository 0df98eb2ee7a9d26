//! Reads `docs/parity.md`.

use std::path::{Path, PathBuf};

/// Where Diarist stands beside the original.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    Same,
    Better,
    Later,
    NotOurs,
}

impl Standing {
    pub fn name(self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::Better => "better",
            Self::Later => "later",
            Self::NotOurs => "not ours",
        }
    }

    fn read(text: &str) -> Self {
        [Self::Same, Self::Better, Self::Later, Self::NotOurs]
            .into_iter()
            .find(|standing| standing.name() == text)
            .unwrap_or_else(|| panic!("{text:?} says not where Diarist stands"))
    }
}

#[derive(Debug)]
pub struct Row {
    pub number: u16,
    pub standing: Standing,
    pub how: String,
    /// `checklist`, or `file: test`.
    pub held: Vec<String>,
}

#[derive(Debug)]
pub struct Opt {
    pub name: String,
    pub standing: Standing,
    pub why: String,
}

#[derive(Debug)]
pub struct Table {
    pub rows: Vec<Row>,
    pub options: Vec<Opt>,
}

impl Table {
    pub fn read() -> Self {
        let text = std::fs::read_to_string(root().join("docs/parity.md")).unwrap();
        let (_, text) = text.split_once("\n## Options\n").unwrap();
        let (options, rows) = text.split_once("\n## What is checked\n").unwrap();
        Self {
            rows: cells(rows).map(|cells| row(&cells)).collect(),
            options: cells(options).map(|cells| option(&cells)).collect(),
        }
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

/// The rows of a table, without its head.
fn cells(text: &str) -> impl Iterator<Item = Vec<String>> {
    text.lines()
        .filter(|line| line.starts_with('|') && !line.starts_with("|---"))
        .skip(1)
        .map(|line| {
            let cells = line.trim_matches('|').split('|');
            cells.map(|cell| cell.trim().to_owned()).collect()
        })
}

fn row(cells: &[String]) -> Row {
    let [number, _what, standing, how, held] = cells else {
        panic!("{cells:?} is no row of five cells");
    };
    Row {
        number: number.parse().unwrap(),
        standing: Standing::read(standing),
        how: how.clone(),
        held: held
            .split(';')
            .map(str::trim)
            .filter(|held| !held.is_empty())
            .map(|held| held.replace('`', "").replace(" (", ": ").replace(')', ""))
            .collect(),
    }
}

fn option(cells: &[String]) -> Opt {
    let [name, standing, why] = cells else {
        panic!("{cells:?} is no option of three cells");
    };
    Opt {
        name: name.replace('`', ""),
        standing: Standing::read(standing),
        why: why.clone(),
    }
}

/// Whether the test `held` (`file: name`) exists.
pub fn exists(held: &str) -> Result<(), String> {
    let (file, name) = held
        .split_once(": ")
        .ok_or_else(|| format!("{held:?} names no file and test"))?;
    let source =
        std::fs::read_to_string(root().join(file)).map_err(|error| format!("{file}: {error}"))?;
    let at = source
        .find(&format!("fn {name}("))
        .ok_or_else(|| format!("{file} holds no {name}"))?;
    let above: Vec<&str> = source[..at].rsplit('\n').skip(1).take(3).collect();
    if above
        .iter()
        .any(|line| line.contains("test]") || line.contains("test("))
    {
        return Ok(());
    }
    Err(format!("{name} in {file} is no test"))
}
