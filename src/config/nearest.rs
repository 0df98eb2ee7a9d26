//! "Did you mean": the known key that is closest to an unknown one.
//!
//! Called only for unknown names, so it is written to be clear, not fast.

/// An option of the published method, and our name for it. The two names are too different to be found by
/// spelling. Ours says "model", because another model loses the cache even at the same provider.
const KEY_ALIAS: (&str, &str) = ("activate_on_provider_change", "activate_on_model_change");

/// The candidate a person most likely meant by `written`, if one is close enough to suggest.
///
/// Up to a third of the letters may differ, and at most four; two letters in the wrong order count as one. A key in the wrong section
/// (`memory.message_tokens`) is matched with the key of the same name in another section.
pub(super) fn nearest<'a>(
    key: &str,
    candidates: impl Iterator<Item = &'a str> + Clone,
) -> Option<&'a str> {
    let our_name = key.replace(KEY_ALIAS.0, KEY_ALIAS.1);
    if our_name != key
        && let Some(candidate) = candidates.clone().find(|candidate| *candidate == our_name)
    {
        return Some(candidate);
    }
    let allowed = (key.chars().count() / 3).max(1);
    let by_spelling = candidates
        .clone()
        .map(|candidate| (strsim::osa_distance(key, candidate), candidate))
        .min()
        .filter(|&(edits, _)| edits <= allowed.min(4))
        .map(|(_, candidate)| candidate);
    by_spelling.or_else(|| {
        let name = leaf(key);
        candidates
            .into_iter()
            .find(|candidate| leaf(candidate) == name)
    })
}

fn leaf(key: &str) -> &str {
    key.rsplit('.').next().unwrap_or(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: [&str; 5] = [
        "server.listen",
        "memory.model",
        "memory.observation.message_tokens",
        "memory.observation.model",
        "memory.observation.activate_on_model_change",
    ];

    fn suggested(written: &str) -> Option<&'static str> {
        nearest(written, KEYS.into_iter())
    }

    #[test]
    fn a_misspelled_key_suggests_the_right_key() {
        assert_eq!(suggested("server.lisen"), Some("server.listen"));
        assert_eq!(suggested("sever.listen"), Some("server.listen"));
        assert_eq!(suggested("server.Listen"), Some("server.listen"));
        assert_eq!(suggested("memory.modle"), Some("memory.model"));
    }

    #[test]
    fn a_key_in_the_wrong_section_suggests_the_right_section() {
        assert_eq!(
            suggested("memory.message_tokens"),
            Some("memory.observation.message_tokens")
        );
    }

    #[test]
    fn the_published_name_of_a_setting_suggests_our_name() {
        assert_eq!(
            suggested("memory.observation.activate_on_provider_change"),
            Some("memory.observation.activate_on_model_change")
        );
    }

    #[test]
    fn a_key_without_a_similar_key_gets_no_suggestion() {
        assert_eq!(suggested("colour.scheme"), None);
    }

    #[test]
    fn two_swapped_letters_count_as_one_mistake() {
        assert_eq!(
            nearest("audti", ["admin", "audit"].into_iter()),
            Some("audit")
        );
    }
}
