//! Checks that more than one section uses, each for one value.

use std::time::Duration;

use url::{ParseError, Url};

use super::parse::Invalid;

/// One of a few names.
pub(super) fn one_of<T: Clone>(text: &str, choices: &[(&str, T)]) -> Result<T, Invalid> {
    let chosen = choices.iter().find(|(name, _)| *name == text);
    chosen.map(|(_, value)| value.clone()).ok_or_else(|| {
        let names: Vec<String> = choices
            .iter()
            .map(|(name, _)| format!("\"{name}\""))
            .collect();
        let remedy = match names.as_slice() {
            [others @ .., last] if !others.is_empty() => {
                format!("write {} or {last}", others.join(", "))
            }
            names => format!("write {}", names.concat()),
        };
        Invalid::new(format!("\"{text}\" is not a known value"), remedy)
    })
}

/// A number from `least` to `most`, both included.
pub(super) fn in_range(number: f64, least: f64, most: f64) -> Result<f64, Invalid> {
    if (least..=most).contains(&number) {
        return Ok(number);
    }
    Err(Invalid::new(
        format!("{number} is out of range"),
        format!("write a number from {least} to {most}"),
    ))
}

pub(super) fn positive_duration(duration: &Duration) -> Result<Duration, Invalid> {
    if duration.is_zero() {
        return Err(Invalid::new(
            "the duration must be greater than 0",
            "write a duration such as \"30s\"",
        ));
    }
    Ok(*duration)
}

/// A text that is not blank, without the blanks around it.
pub(super) fn non_empty(text: &str) -> Result<String, Invalid> {
    match text.trim() {
        "" => Err(Invalid::new(
            "the text is empty",
            "write a text, or remove the key",
        )),
        text => Ok(text.to_owned()),
    }
}

/// The base URL of a provider, to which paths can be appended.
pub(super) fn base_url(text: &str) -> Result<Url, Invalid> {
    base_url_like(text, "https://api.openai.com/v1")
}

/// A base URL such as `example`.
pub(super) fn base_url_like(text: &str, example: &str) -> Result<Url, Invalid> {
    let example = format!("write a URL such as \"{example}\"");
    let mut url = Url::parse(text.trim())
        // The text is not shown: it may hold a password.
        .map_err(|error| {
            let what = match error {
                ParseError::RelativeUrlWithoutBase => {
                    "this is not a URL: it does not begin with https:// or http://".to_owned()
                }
                error => format!("this is not a URL: {error}"),
            };
            Invalid::new(what, example)
        })?;
    if !matches!(url.scheme(), "http" | "https") {
        let what = format!("\"{}://\" is not supported", url.scheme());
        return Err(Invalid::new(what, "begin the URL with https:// or http://"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(Invalid::new(
            "a base URL must not contain a user name or a password",
            "remove them; clients send their key in the Authorization header",
        ));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(Invalid::new(
            "a base URL must not contain ? or #",
            "remove that part; Diarist forwards the query of each request",
        ));
    }
    let path = url.path().trim_end_matches('/').to_owned();
    url.set_path(&path);
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_url_loses_trailing_slashes_and_spaces() {
        let normal = |text| base_url(text).unwrap().to_string();
        assert_eq!(
            normal("https://api.openai.com/v1/"),
            "https://api.openai.com/v1"
        );
        assert_eq!(normal("http://127.0.0.1:9"), "http://127.0.0.1:9/");
        assert_eq!(normal(" https://host/a/b// "), "https://host/a/b");
    }
}
