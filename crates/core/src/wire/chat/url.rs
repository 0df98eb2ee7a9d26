//! Compares URLs without parameters that only sign a link.
//!
//! Storage services give out links that expire, and a client that sends an image again signs it anew
//! each time. Everything else in a URL counts, the order included.

use std::borrow::Cow;

/// Parameters that are signatures by themselves. Prefixes of the S3 and Google Cloud Storage families;
/// `signature` and `expires` are also used by CloudFront and older S3.
const SIGNING: [&str; 10] = [
    "signature",
    "expires",
    "expiry",
    "awsaccesskeyid",
    "ossaccesskeyid",
    "googleaccessid",
    "key-pair-id",
    "security-token",
    "token",
    "sig",
];
const SIGNING_PREFIXES: [&str; 3] = ["x-amz-", "x-goog-", "x-oss-"];

/// Short parameters that sign only together with another one: Azure's shared access signatures have
/// `sig`, Discord's `hm`, CloudFront's `policy` a `signature`. Alone they may mean anything.
const COMPANIONS: [(&str, &[&str]); 3] = [
    (
        "sig",
        &[
            "se", "sp", "sv", "sr", "st", "spr", "sip", "ss", "srt", "skoid", "sktid", "skt",
            "ske", "sks", "skv",
        ],
    ),
    ("hm", &["hm", "ex", "is"]),
    ("signature", &["policy"]),
];

/// `text` without signing parameters, if it is an `http` or `https` URL; borrowed if nothing was
/// removed.
pub(super) fn without_signature(text: &str) -> Cow<'_, str> {
    let Some((base, query, fragment)) = parts(text) else {
        return Cow::Borrowed(text);
    };
    let names: Vec<String> = query.split('&').map(name).collect();
    let companion_names: Vec<&[&str]> = COMPANIONS
        .iter()
        .filter(|(leader, _)| names.iter().any(|name| name == leader))
        .map(|(_, company)| *company)
        .collect();
    let is_signing = |name: &str| {
        SIGNING.contains(&name)
            || SIGNING_PREFIXES
                .iter()
                .any(|prefix| name.starts_with(prefix))
            || companion_names
                .iter()
                .any(|company| company.contains(&name))
    };
    if !names.iter().any(|name| is_signing(name)) {
        return Cow::Borrowed(text);
    }
    let mut unsigned = String::from(base);
    let mut mark = '?';
    for (parameter, name) in query.split('&').zip(&names) {
        if !is_signing(name) {
            unsigned.push(mark);
            unsigned.push_str(parameter);
            mark = '&';
        }
    }
    unsigned.push_str(fragment);
    Cow::Owned(unsigned)
}

/// The last segment of a URL's path, for people; its host if the path is empty.
pub(super) fn basename(url: &str) -> &str {
    let end = url.find(['?', '#']).unwrap_or(url.len());
    let bare = url[..end].trim_end_matches('/');
    bare.rsplit('/').next().unwrap_or(bare)
}

/// Base, query and fragment (with its mark) of an `http` or `https` URL that has a query.
fn parts(text: &str) -> Option<(&str, &str, &str)> {
    let scheme = text.get(..8.min(text.len()))?.to_ascii_lowercase();
    if !scheme.starts_with("http://") && scheme != "https://" {
        return None;
    }
    let (rest, fragment) = text.split_at(text.find('#').unwrap_or(text.len()));
    let (base, query) = rest.split_once('?')?;
    Some((base, query, fragment))
}

fn name(parameter: &str) -> String {
    let end = parameter.find('=').unwrap_or(parameter.len());
    parameter[..end].to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_signature_parameters_are_removed_from_a_url() {
        for (url, kept) in [
            (
                "https://h/a.png?X-Amz-Date=1&v=2&X-Amz-Signature=ff",
                "https://h/a.png?v=2",
            ),
            (
                "HTTPS://h/a?Signature=x&Expires=9&Policy=p#f",
                "HTTPS://h/a#f",
            ),
            ("http://h/a?sv=1&se=2&sp=r&sig=x", "http://h/a"),
            ("http://h/a?sp=r&sv=1", "http://h/a?sp=r&sv=1"),
            ("https://h/a?ex=1&is=2&hm=3", "https://h/a"),
            ("https://h/a?is=2&b", "https://h/a?is=2&b"),
            ("https://h/a?b=1&token=t&a=2", "https://h/a?b=1&a=2"),
            ("https://h/a", "https://h/a"),
            ("ftp://h/a?token=t", "ftp://h/a?token=t"),
            ("not a url? token=t", "not a url? token=t"),
            ("éhttps://h?token=t", "éhttps://h?token=t"),
            ("", ""),
        ] {
            assert_eq!(without_signature(url), kept);
        }
    }

    #[test]
    fn the_label_of_a_url_is_its_last_path_part_or_host() {
        assert_eq!(basename("https://h/dir/cat.png?x=/y"), "cat.png");
        assert_eq!(basename("https://h/dir/#x"), "dir");
        assert_eq!(basename("https://h"), "h");
    }
}
