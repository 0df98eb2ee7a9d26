//! Shortens a long text to its beginning and its end.

/// At most the first `head` and the last `tail` lines of `text`, each at most `width` characters wide. A note
/// replaces the lines between.
pub fn excerpt(text: &str, head: usize, tail: usize, width: usize) -> String {
    let lines: Vec<&str> = text.trim_end().lines().collect();
    let clipped_line = |line: &&str| clip(line, width) + "\n";
    if lines.len() <= head + tail + 1 {
        return lines.iter().map(clipped_line).collect();
    }
    let left_out = lines.len() - head - tail;
    let first: String = lines[..head].iter().map(clipped_line).collect();
    let last: String = lines[lines.len() - tail..]
        .iter()
        .map(clipped_line)
        .collect();
    format!("{first}  … {left_out} more lines …\n{last}")
}

fn clip(line: &str, width: usize) -> String {
    if line.chars().count() <= width {
        return line.to_owned();
    }
    let start: String = line.chars().take(width.saturating_sub(1)).collect();
    start + "…"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_is_cut_and_a_note_counts_the_lines() {
        let text: String = (1..=9).map(|n| format!("line {n}\n")).collect();
        assert_eq!(excerpt(&text, 5, 3, 80), text);
        assert_eq!(
            excerpt(&text, 2, 1, 80),
            "line 1\nline 2\n  … 6 more lines …\nline 9\n"
        );
        assert_eq!(excerpt("één lange regel", 1, 1, 5), "één …\n");
        assert_eq!(excerpt("", 2, 1, 5), "");
    }
}
