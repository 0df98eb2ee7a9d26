//! The chart: the size of each request as the client sent it, and as it reached the provider.
//!
//! Each column has two bars: the solid one is the size that was sent, the shaded one above it the size that was
//! saved. If there are more requests than columns, several requests share a column.

use super::{MemoryChange, ReportStep};

/// The size of the chart, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Width of the whole chart, scale included.
    pub width: usize,
    /// Height of the bars.
    pub height: usize,
}

/// The scale on the left: a number, a blank, a tick.
const SCALE: usize = 8;
/// A bar's upper end, in eighths of a cell.
const EIGHTHS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const SHADE: char = '░';

/// One column of the chart: the largest requests in it.
#[derive(Clone, Copy, Debug, Default)]
struct Column {
    received: u64,
    sent: u64,
    mark: Option<MemoryChange>,
}

/// Draws `steps`, with the scale on the left and a legend below. Empty if nothing was counted.
pub fn chart(steps: &[ReportStep], size: Size) -> String {
    let columns = columns(steps, size.width.saturating_sub(SCALE).max(1));
    let top = columns
        .iter()
        .map(|column| column.received.max(column.sent))
        .max()
        .unwrap_or(0);
    if top == 0 {
        return String::new();
    }
    let height = size.height.max(1);
    let mut picture = String::new();
    for row in (0..height).rev() {
        let label = if row + 1 == height || (row + 1) * 2 == height {
            thousands(top * (row as u64 + 1) / height as u64)
        } else {
            String::new()
        };
        let tick = if label.is_empty() { '│' } else { '┤' };
        let bars: String = columns
            .iter()
            .map(|column| cell(column, row, height, top))
            .collect();
        picture.push_str(&line(&format!("{label:>6} {tick}"), &bars));
    }
    let axis = "─".repeat(columns.len());
    picture.push_str(&line("     0 └", &axis));
    let marks: String = columns
        .iter()
        .map(|column| mark_symbol(column.mark))
        .collect();
    if !marks.trim().is_empty() {
        picture.push_str(&line("        ", &marks));
    }
    let last = steps.len().to_string();
    let numbers = match columns.len().saturating_sub(1) {
        gap if gap > last.len() => format!("1{last:>gap$}"),
        _ => last,
    };
    picture.push_str(&line("        ", &numbers));
    picture.push_str(&legend(steps));
    picture
}

/// The steps in at most `width` columns: several to a column, or each over several columns.
fn columns(steps: &[ReportStep], width: usize) -> Vec<Column> {
    if steps.len() > width {
        // Integer arithmetic over the whole width: every step falls into one column.
        let bound = |at: usize| at * steps.len() / width;
        return (0..width)
            .map(|at| column(&steps[bound(at)..bound(at + 1)]))
            .collect();
    }
    let each = width / steps.len().max(1);
    let spread = |step: &ReportStep| {
        let first = column(std::slice::from_ref(step));
        // Marked once, where the step begins.
        let rest = Column {
            mark: None,
            ..first
        };
        std::iter::once(first).chain(std::iter::repeat_n(rest, each.saturating_sub(1)))
    };
    steps.iter().flat_map(spread).collect()
}

fn column(steps: &[ReportStep]) -> Column {
    steps.iter().fold(Column::default(), |column, step| {
        let received = step.direct.and_then(|tokens| tokens.prompt);
        Column {
            received: column.received.max(received.unwrap_or(0)),
            sent: column.sent.max(step.forwarded.prompt.unwrap_or(0)),
            mark: column.mark.max(step.mark),
        }
    })
}

fn cell(column: &Column, row: usize, height: usize, top: u64) -> char {
    let eighths = |tokens: u64| {
        let all = tokens * height as u64 * 8;
        usize::try_from(all.div_ceil(top)).unwrap_or(usize::MAX)
    };
    let solid = eighths(column.sent).saturating_sub(row * 8).min(8);
    let shade = eighths(column.received).saturating_sub(row * 8).min(8);
    match (solid, shade) {
        (1.., _) => EIGHTHS[solid],
        // Less than half a cell of shade would make the bar look longer than it is.
        (0, 4..) => SHADE,
        (0, _) => ' ',
    }
}

fn mark_symbol(mark: Option<MemoryChange>) -> char {
    match mark {
        None => ' ',
        Some(MemoryChange::Activation) => '▲',
        Some(MemoryChange::Reflection) => '◆',
    }
}

fn legend(steps: &[ReportStep]) -> String {
    let mut legend = String::new();
    let saved = |step: &ReportStep| Some(step.direct?.prompt? > step.forwarded.prompt?);
    if steps.iter().any(|step| saved(step) == Some(true)) {
        legend.push_str("        ░ tokens received from the client, and not sent\n");
    }
    legend.push_str("        █ tokens sent to the provider\n");
    for (mark, text) in [
        (
            MemoryChange::Activation,
            "▲ activation: observations took the place of older messages",
        ),
        (
            MemoryChange::Reflection,
            "◆ reflection: the observations were condensed",
        ),
    ] {
        if steps.iter().any(|step| step.mark == Some(mark)) {
            legend.push_str(&format!("        {text}\n"));
        }
    }
    legend
}

fn line(scale: &str, bars: &str) -> String {
    format!("{scale}{bars}").trim_end().to_owned() + "\n"
}

fn thousands(tokens: u64) -> String {
    match tokens {
        0..1_000 => tokens.to_string(),
        1_000..10_000 => format!("{:.1}k", tokens as f64 / 1e3),
        10_000..1_000_000 => format!("{}k", tokens / 1_000),
        _ => format!("{:.1}M", tokens as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Tokens;

    fn step(received: u64, sent: u64, mark: Option<MemoryChange>) -> ReportStep {
        let prompt = |tokens| Tokens {
            prompt: Some(tokens),
            ..Tokens::default()
        };
        ReportStep {
            direct: Some(prompt(received)),
            forwarded: prompt(sent),
            mark,
        }
    }

    fn story() -> Vec<ReportStep> {
        let mut steps: Vec<ReportStep> = (1..=24)
            .map(|n| {
                let full = n * 1_000;
                step(full, full.min(4_000 + full % 4_000), None)
            })
            .collect();
        steps[7].mark = Some(MemoryChange::Activation);
        steps[15].mark = Some(MemoryChange::Reflection);
        steps
    }

    #[test]
    fn the_chart_shows_both_bars_and_the_marks() {
        let size = Size {
            width: 32,
            height: 6,
        };
        insta::assert_snapshot!(chart(&story(), size));
    }

    #[test]
    fn the_chart_fits_its_width_for_any_number_of_steps() {
        let all = story();
        for steps in [1, 2, 7, 15, 24] {
            for width in [9, 20, 33, 80] {
                let size = Size { width, height: 4 };
                let picture = chart(&all[..steps], size);
                let legend = |line: &&str| line.contains("tokens");
                let lines: Vec<&str> = picture.lines().take_while(|line| !legend(line)).collect();
                let widest = lines.iter().map(|line| line.chars().count()).max();
                assert!(
                    widest <= Some(width.max(10)),
                    "{steps} in {width}:\n{picture}"
                );
                // In one single column the reflection would stand for both.
                let marked = usize::from(steps > 7 && (steps < 16 || width > 9));
                let marks = lines.concat().matches('▲').count();
                assert_eq!(marks, marked, "{steps} in {width}:\n{picture}");
            }
        }
    }

    #[test]
    fn a_chart_without_a_baseline_has_no_shading() {
        let steps = story().into_iter().map(|step| ReportStep {
            direct: None,
            ..step
        });
        let size = Size {
            width: 40,
            height: 5,
        };
        let picture = chart(&steps.collect::<Vec<_>>(), size);
        assert!(!picture.contains('░') && picture.contains('█'), "{picture}");
        assert_eq!(chart(&[ReportStep::default()], size), "");
        assert_eq!(chart(&[], size), "");
    }
}
