//! Charts of bars as inline SVG.
//!
//! The picture has no text in it, so it can be stretched to any width; the labels stand around it.

use super::text::escaped;

/// One place on the horizontal axis.
pub(super) struct Bar {
    pub label: String,
    /// Bars side by side; an unknown one is left out.
    pub values: Vec<Option<f64>>,
    /// What a pointer on it shows.
    pub title: String,
}

/// Units of the picture's height, and of the place of one bar.
const HEIGHT: f64 = 100.0;
const STEP: f64 = 10.0;
const GAP: f64 = 2.0;

/// Bars up to `top`, which is written as `top_label`.
pub(super) fn bars(all: &[Bar], top: f64, top_label: &str) -> String {
    let width = STEP * all.len().max(1) as f64;
    let mut svg = format!(
        "<div class=\"chart\"><span class=\"top\">{}</span>\n\
         <svg viewBox=\"0 0 {width} {HEIGHT}\" preserveAspectRatio=\"none\" role=\"img\">\n",
        escaped(top_label)
    );
    for (place, bar) in all.iter().enumerate() {
        let each = (STEP - GAP) / bar.values.len().max(1) as f64;
        let left = STEP * place as f64 + GAP / 2.0;
        svg.push_str(&format!("<g><title>{}</title>", escaped(&bar.title)));
        // The pointer finds the whole column, also where a bar is short.
        svg.push_str(&format!(
            "<rect class=\"back\" x=\"{}\" y=\"0\" width=\"{STEP}\" height=\"{HEIGHT}\"/>",
            STEP * place as f64
        ));
        for (at, value) in bar.values.iter().enumerate() {
            let Some(value) = value else { continue };
            let height = (value / top * HEIGHT).clamp(0.0, HEIGHT);
            let class = if at == 0 { "first" } else { "second" };
            svg.push_str(&format!(
                "<rect class=\"{class}\" x=\"{:.2}\" y=\"{:.2}\" width=\"{each:.2}\" height=\"{height:.2}\"/>",
                left + each * at as f64,
                HEIGHT - height
            ));
        }
        svg.push_str("</g>\n");
    }
    let label = |bar: Option<&Bar>| bar.map_or(String::new(), |bar| escaped(&bar.label));
    let last = if all.len() > 1 {
        label(all.last())
    } else {
        String::new()
    };
    svg.push_str(&format!(
        "</svg>\n<div class=\"axis\"><span>{}</span><span>{last}</span></div></div>\n",
        label(all.first()),
    ));
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_have_the_right_height_and_unknown_values_have_no_bar() {
        let bar = |label: &str, values: &[Option<f64>]| Bar {
            label: label.to_owned(),
            values: values.to_vec(),
            title: label.to_owned(),
        };
        let all = [
            bar("a<b", &[Some(1.0), Some(4.0)]),
            bar("c", &[None, Some(9.0)]),
        ];
        let svg = bars(&all, 4.0, "$4");
        assert!(svg.contains("viewBox=\"0 0 20 100\""), "{svg}");
        assert!(
            svg.contains("class=\"first\" x=\"1.00\" y=\"75.00\" width=\"4.00\" height=\"25.00\""),
            "{svg}"
        );
        assert_eq!(svg.matches("class=\"first\"").count(), 1, "{svg}");
        assert_eq!(svg.matches("height=\"100.00\"").count(), 2, "{svg}");
        assert!(svg.contains("a&lt;b") && !svg.contains("a<b"), "{svg}");
    }
}
