//! What counting costs; it never happens on the request path.
//!
//! `cargo bench --bench tokens`.

use diarist::tokens::{O200k, TokenCounter};
use divan::Bencher;
use divan::counter::BytesCount;

fn main() {
    // The first count loads the tables.
    O200k::new().count("a");
    divan::main();
}

const TEXTS: [(&str, &str); 4] = [
    (
        "prose",
        "The log is written while nobody waits; what was said stays as it was said. ",
    ),
    (
        "code",
        "    if found > 10 {\n        return Err(Error::TooBig);\n    }\n",
    ),
    ("chinese", "今天天气很好，我们去公园散步吧。"),
    ("spaces", " "),
];

#[divan::bench(args = ["prose", "code", "chinese", "spaces"])]
fn count(bencher: Bencher<'_, '_>, name: &str) {
    let unit = TEXTS
        .iter()
        .find(|(text, _)| *text == name)
        .map_or("", |(_, unit)| unit);
    let text = unit.repeat(100_000 / unit.len());
    let counter = O200k::new();
    bencher
        .counter(BytesCount::new(text.len()))
        .bench_local(|| counter.count(&text));
}
