//! What the field `reason` of a line means, in one plain sentence for each value. `docs/audit.md` lists the same values.

/// Each reason with its sentence.
const REASONS: &[(&str, &str)] = &[
    (
        "no_snapshot",
        "There are no observations for this conversation yet: it is new, or short.",
    ),
    (
        "observer_failing",
        "The Observer does not work: it fails, refuses, or answers what cannot be used.",
    ),
    (
        "observer_resting",
        "Memory makes no calls with the client's credential for now, because of its rate limit.",
    ),
    (
        "budget_spent",
        "Memory makes no calls for now: the tokens that it may use on a day are spent.",
    ),
    (
        "not_yet",
        "There are observations, but only a longer history may use them.",
    ),
    (
        "unsafe_cut",
        "There are observations, but to replace messages there would break a tool call or the newest user message.",
    ),
    (
        "no_placement",
        "There are observations, but no place for them: `upstream.placement` says so, or the model refuses every place.",
    ),
    (
        "holdout",
        "The conversation goes without memory, to measure what memory saves (`audit.holdout`).",
    ),
    (
        "observer_paused",
        "The Observer does not read this conversation for now: it was shown 1.5 times what is new.",
    ),
    (
        "longest",
        "Of the observations that fit, these replace the most messages: the normal case.",
    ),
    (
        "repeated",
        "The same request came before, and went out in the same form.",
    ),
    (
        "aligned",
        "The client dropped or changed messages. The rest proves that it is the same conversation.",
    ),
    (
        "compaction_link",
        "The client replaced messages by a summary that the model wrote in this conversation.",
    ),
    (
        "others",
        "The conversation is new. It was sent notes about other conversations of the same user.",
    ),
    (
        "trimmed",
        "The oldest messages were left out, because the request is too long for the model.",
    ),
    (
        "too_long",
        "The request was refused as too long, and went out shorter.",
    ),
    ("refused", "The upstream refused the changed request."),
    (
        "filtered",
        "A content filter refused these observations twice before.",
    ),
    (
        "store",
        "The database failed, and the process knew no observations that fit.",
    ),
    (
        "too_many_tenants",
        "The tenant is new, and its account began too many in this hour (`identity.new_tenants_per_hour`).",
    ),
    (
        "forgotten",
        "An operator has had this conversation, user or tenant forgotten.",
    ),
    (
        "fault",
        "A fault in Diarist: the request could not be read. The log has the place.",
    ),
    ("no_history", "The request has only system messages."),
    ("invalid_utf8", "The body is not UTF-8."),
    ("invalid_json", "The body is not JSON."),
    ("too_deep", "The JSON of the body is nested too deep."),
    ("not_an_object", "The body is not a JSON object."),
    ("duplicate_key", "The body has the same key twice."),
    ("messages_missing", "The body has no field for messages."),
    (
        "messages_not_an_array",
        "The messages of the body are not a list.",
    ),
    ("messages_empty", "The list of messages is empty."),
    (
        "too_many_messages",
        "The request has more than 50,000 messages.",
    ),
    ("message_not_an_object", "A message is not a JSON object."),
    (
        "unknown_role",
        "A message has a role that Diarist does not know.",
    ),
    ("wrong_type", "A field of the body has the wrong type."),
    (
        "signed_body",
        "Headers sign the body, so it must stay as it is.",
    ),
    ("encoded_body", "The body is compressed."),
    ("bad_resource", "The name of the user cannot be used."),
    (
        "resource_malformed",
        "The signed name of the user is not a token.",
    ),
    (
        "resource_unknown_key",
        "The signed name of the user has an unknown key.",
    ),
    (
        "resource_algorithm",
        "The signed name of the user has an algorithm that is not allowed.",
    ),
    (
        "resource_signature",
        "The signed name of the user has a wrong signature.",
    ),
    (
        "resource_expired",
        "The signed name of the user has expired, or does not say when it does.",
    ),
    (
        "resource_issuer",
        "The signed name of the user has a wrong issuer.",
    ),
    (
        "resource_audience",
        "The signed name of the user is for another audience.",
    ),
    (
        "resource_no_subject",
        "The signed name of the user has no user in it.",
    ),
    ("disabled", "The configuration says so (`memory.enabled`)."),
    (
        "asked",
        "The client asked for that (`x-diarist-memory: off`).",
    ),
    ("rule", "A rule in `memory.rules` says so."),
    (
        "anonymous",
        "The request has no credential, and the data port is open beyond this machine.",
    ),
    (
        "cross_site",
        "The request has no credential, and a browser sent it for a page of another origin.",
    ),
];

/// The sentence for a reason; `None` if it is not known.
pub(super) fn sentence(reason: &str) -> Option<&'static str> {
    let known = REASONS.iter().find(|(name, _)| *name == reason);
    known.map(|(_, sentence)| *sentence)
}
