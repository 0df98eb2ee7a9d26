//! Text in columns.

/// How the cells of a column are aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnAlign {
    /// For text.
    Left,
    /// For numbers.
    Right,
}

/// Aligns `rows` in columns, with two blanks between them. A column without any text is left out. Cells beyond
/// `sides` are aligned left.
pub fn align_columns(rows: &[Vec<String>], sides: &[ColumnAlign]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let cell = |row: &[String], at: usize| row.get(at).map_or(0, |cell| cell.chars().count());
    let widths: Vec<usize> = (0..columns)
        .map(|at| rows.iter().map(|row| cell(row, at)).max().unwrap_or(0))
        .collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (at, (cell, &width)) in row.iter().zip(&widths).enumerate() {
            if width == 0 {
                continue;
            }
            if !line.is_empty() {
                line.push_str("  ");
            }
            match sides.get(at) {
                Some(ColumnAlign::Right) => line.push_str(&format!("{cell:>width$}")),
                Some(ColumnAlign::Left) | None => line.push_str(&format!("{cell:<width$}")),
            }
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_empty_columns_are_removed() {
        let rows =
            [["né", "", "1"], ["name", "", "1,000"]].map(|row| row.map(str::to_owned).to_vec());
        let text = align_columns(
            &rows,
            &[ColumnAlign::Left, ColumnAlign::Left, ColumnAlign::Right],
        );
        assert_eq!(text, "né        1\nname  1,000\n");
        assert_eq!(align_columns(&[], &[]), "");
    }
}
