//! The tables of `docs/testing.md` that list planted bugs, each with whom it is noticed by.

const TESTING: &str = include_str!("../../docs/testing.md");

/// The rows of the table behind the words `marker`: the bug, and who notices it.
pub fn rows(marker: &str) -> Vec<(String, String)> {
    let (_, table) = TESTING.split_once(marker).unwrap();
    let rows = table.lines().skip_while(|line| !line.starts_with('|'));
    rows.take_while(|line| line.starts_with('|'))
        .skip(2)
        .filter_map(|row| {
            let (_, rest) = row.split_once("(`")?;
            let (bug, noticed) = rest.split_once("`) | ")?;
            Some((
                bug.to_owned(),
                noticed.trim_end_matches([' ', '|']).to_owned(),
            ))
        })
        .collect()
}
