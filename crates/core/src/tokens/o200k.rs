//! `o200k_base` behind a guard.
//!
//! The tables are part of the binary and are decoded on first use, in a few tenths of a second. Only `count_ordinary` is used,
//! because text may contain names of special tokens, which are ordinary words there.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

use super::pieces::pieces;
use super::{Estimate, TokenCounter};
use crate::steps::end_step;

/// The tokenizer of OpenAI's models since GPT-4o; an estimate for models of other vendors.
#[derive(Debug, Default)]
pub struct O200k {
    counted_bytes: AtomicU64,
}

impl O200k {
    /// A counter. Cheap: all counters share the tables, and the first count loads them.
    pub fn new() -> Self {
        Self::default()
    }
}

impl TokenCounter for O200k {
    fn count(&self, text: &str) -> u32 {
        self.counted_bytes
            .fetch_add(text.len() as u64, Ordering::Relaxed);
        pieces(text).map(count_piece).fold(0, u32::saturating_add)
    }

    fn counted_bytes(&self) -> u64 {
        self.counted_bytes.load(Ordering::Relaxed)
    }
}

fn count_piece(piece: &str) -> u32 {
    end_step();
    let tables = tiktoken_rs::o200k_base_singleton();
    // The last guard. The tables are never written to, so a panic leaves nothing half done.
    catch_unwind(AssertUnwindSafe(|| tables.count_ordinary(piece))).map_or_else(
        |_| Estimate.count(piece),
        |count| u32::try_from(count).unwrap_or(u32::MAX),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exact(text: &str) -> u32 {
        u32::try_from(tiktoken_rs::o200k_base_singleton().count_ordinary(text)).unwrap()
    }

    #[test]
    fn prose_and_code_are_counted_exactly() {
        let prose = "It was a bright day, and the clocks weren't striking; \"Ready?\" she asked. \n\n  — Oui!  ".repeat(300);
        let code =
            "fn main() {\n    let x = [1, 20, 300];\t// comment…\n\n    println!(\"{x:?}\");\n}\n"
                .repeat(300);
        let russian = "Съешь же ещё этих мягких французских булок, да выпей чаю. ".repeat(300);
        let table = "| a | 12345 | 3.14 |\r\n".repeat(900);
        for text in [prose, code, russian, table] {
            assert_eq!(O200k::new().count(&text), exact(&text), "{}", &text[..60]);
        }
    }

    #[test]
    fn the_count_of_text_without_spaces_is_almost_exact() {
        let chinese = "今天天气很好，我们去公园散步吧。".repeat(600);
        let base64: String = (0_u32..60_000)
            .map(|n| {
                char::from(
                    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
                        [(n.wrapping_mul(2_654_435_761) >> 26) as usize],
                )
            })
            .collect();
        for text in [chinese, base64] {
            let (counted, exact) = (O200k::new().count(&text), exact(&text));
            assert!(
                counted.abs_diff(exact) * 200 <= exact,
                "{counted} for {exact}"
            );
        }
    }

    #[test]
    fn names_of_special_tokens_are_counted_as_ordinary_text() {
        assert_eq!(O200k::new().count("<|endoftext|>"), exact("<|endoftext|>"));
        assert!(O200k::new().count("<|endoftext|>") > 1);
    }

    /// One million spaces panic the bare tokenizer.
    #[test]
    fn hostile_text_does_not_crash_the_counter() {
        let zalgo: String = "Z\u{0351}\u{036b}\u{0343}\u{036a}a\u{0321}\u{0353}".repeat(20_000);
        for text in [
            "a".repeat(1_300_000),
            " ".repeat(1_100_000),
            "\t".repeat(1_100_000),
            "\u{a0}".repeat(1_100_000),
            "^".repeat(1_000_000),
            "QUJDRGVm".repeat(640_000),
            zalgo,
            "👩‍👩‍👧‍👦".repeat(20_000),
            "\n".repeat(1_100_000),
            "\0".repeat(100_000),
        ] {
            let count = O200k::new().count(&text) as usize;
            assert!(count > 0 && count <= text.len());
        }
        assert_eq!(O200k::new().count(""), 0);
    }

    #[test]
    fn the_counter_reports_how_many_bytes_it_has_tokenised() {
        let counter = O200k::new();
        counter.count("häh");
        counter.count("");
        counter.count("ab");
        assert_eq!(counter.counted_bytes(), 6);
    }
}
