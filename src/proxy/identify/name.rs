//! Names that clients give: of users and of conversations.

/// The longest user name accepted, in bytes.
pub(super) const MAX_NAME_BYTES: usize = 256;

/// The value, if it can be shown and stored: visible ASCII without spaces, not too long.
pub(super) fn usable_name(value: &[u8]) -> Option<&str> {
    let value = value.trim_ascii();
    let fits = !value.is_empty()
        && value.len() <= MAX_NAME_BYTES
        && value.iter().all(u8::is_ascii_graphic);
    fits.then(|| std::str::from_utf8(value).ok()).flatten()
}
