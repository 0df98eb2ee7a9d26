//! Values that more than one section has, each judged by itself.

use std::time::Duration;

use url::Url;

use super::parse::Invalid;

/// A timeout that leaves time.
pub(super) fn positive_duration(duration: &Duration) -> Result<Duration, Invalid> {
    if duration.is_zero() {
        return Err(Invalid::new(
            "nothing can be done in no time",
            "write a duration above 0, such as \"30s\"",
        ));
    }
    Ok(*duration)
}

/// A text that says something, without the blanks around it.
pub(super) fn non_empty(text: &str) -> Result<String, Invalid> {
    match text.trim() {
        "" => Err(Invalid::new(
            "it is empty",
            "write something, or remove the key",
        )),
        text => Ok(text.to_owned()),
    }
}

/// A base URL that paths can be put after.
pub(super) fn base_url(text: &str) -> Result<Url, Invalid> {
    let example = "write one such as \"https://api.openai.com/v1\"";
    let mut url = Url::parse(text.trim())
        // The text is not shown: it may hold a password.
        .map_err(|error| Invalid::new(format!("this is not a URL: {error}"), example))?;
    if !matches!(url.scheme(), "http" | "https") {
        let what = format!("\"{}\" is not a scheme Diarist speaks", url.scheme());
        return Err(Invalid::new(what, "begin the URL with https:// or http://"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(Invalid::new(
            "a user name or password has no place in a base URL",
            "remove it; credentials travel in the Authorization header",
        ));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(Invalid::new(
            "a base URL ends with its path, without ? or #",
            "remove the rest; the query of each request is passed on",
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
    fn base_urls_lose_their_last_slash_only() {
        let normal = |text| base_url(text).unwrap().to_string();
        assert_eq!(
            normal("https://api.openai.com/v1/"),
            "https://api.openai.com/v1"
        );
        assert_eq!(normal("http://127.0.0.1:9"), "http://127.0.0.1:9/");
        assert_eq!(normal(" https://host/a/b// "), "https://host/a/b");
    }
}
