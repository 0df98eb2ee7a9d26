//! Finds type and size of an image or file that a message contains as base64, and width and height from
//! its first bytes.
//!
//! Decodes only these first bytes and decides nothing. Called when a message is converted to plain
//! text, never on the request path.

use crate::history::Media;

/// Characters that are decoded to find the size of an image. In a photograph, it stands behind the
/// camera's metadata and thumbnail; each of these parts has at most 64 KiB.
const MAX_DECODED_CHARS: usize = 256 * 1024;

/// The content of a URL; only a `data:` URL has any.
pub(super) fn from_url(url: &str) -> Media {
    let Some(rest) = url.strip_prefix("data:") else {
        return Media::default();
    };
    let (kind, data) = rest.split_once(',').unwrap_or((rest, ""));
    let mime = kind.split(';').next().filter(|mime| !mime.is_empty());
    if kind
        .rsplit(';')
        .any(|word| word.trim().eq_ignore_ascii_case("base64"))
    {
        return from_base64(data, mime);
    }
    Media {
        mime: mime.map(str::to_ascii_lowercase),
        bytes: Some(data.len() as u64),
        ..Media::default()
    }
}

/// The content of base64 text.
pub(super) fn from_base64(data: &str, mime: Option<&str>) -> Media {
    let digits = data.bytes().filter(|byte| sextet(*byte).is_some()).count() as u64;
    Media {
        mime: mime.map(str::to_ascii_lowercase),
        bytes: Some(digits * 3 / 4),
        pixels: pixels(&decode(data, MAX_DECODED_CHARS)),
        ..Media::default()
    }
}

/// The value of a base64 digit, in either alphabet.
fn sextet(digit: u8) -> Option<u32> {
    let value = match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'+' | b'-' => 62,
        b'/' | b'_' => 63,
        _ => return None,
    };
    Some(u32::from(value))
}

/// The bytes of the first `max_chars` characters. Padding, line breaks and other characters are
/// skipped.
fn decode(data: &str, max_chars: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(data.len().min(max_chars) / 4 * 3);
    let (mut group, mut bits) = (0_u32, 0_u32);
    for value in data.bytes().take(max_chars).filter_map(sextet) {
        group = group << 6 | value;
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push((group >> bits & 0xff) as u8);
        }
    }
    bytes
}

/// Width and height from the headers of PNG, GIF, JPEG and WebP.
fn pixels(bytes: &[u8]) -> Option<(u32, u32)> {
    let (width, height) = if bytes.starts_with(b"\x89PNG\r\n\x1a\n") {
        (big(bytes, 16, 4)?, big(bytes, 20, 4)?)
    } else if bytes.starts_with(b"GIF8") {
        (little(bytes, 6, 2)?, little(bytes, 8, 2)?)
    } else if bytes.starts_with(b"\xff\xd8") {
        jpeg(bytes)?
    } else if bytes.starts_with(b"RIFF") && bytes.get(8..12)? == b"WEBP" {
        webp(bytes)?
    } else {
        return None;
    };
    (width > 0 && height > 0).then_some((width, height))
}

/// Walks over the segments up to the frame header.
fn jpeg(bytes: &[u8]) -> Option<(u32, u32)> {
    let mut at = 2;
    loop {
        let marker = *bytes.get(at + 1)?;
        if *bytes.get(at)? != 0xff {
            return None;
        }
        match marker {
            // Fill bytes, and markers without a length.
            0xff => at += 1,
            0x01 | 0xd0..=0xd7 => at += 2,
            // Frame headers; the three that are left out are tables.
            0xc0..=0xcf if !matches!(marker, 0xc4 | 0xc8 | 0xcc) => {
                return Some((big(bytes, at + 7, 2)?, big(bytes, at + 5, 2)?));
            }
            _ => at += 2 + big(bytes, at + 2, 2)? as usize,
        }
    }
}

fn webp(bytes: &[u8]) -> Option<(u32, u32)> {
    match bytes.get(12..16)? {
        b"VP8 " => Some((
            little(bytes, 26, 2)? & 0x3fff,
            little(bytes, 28, 2)? & 0x3fff,
        )),
        b"VP8L" => {
            let bits = little(bytes, 21, 4)?;
            Some(((bits & 0x3fff) + 1, (bits >> 14 & 0x3fff) + 1))
        }
        b"VP8X" => Some((little(bytes, 24, 3)? + 1, little(bytes, 27, 3)? + 1)),
        _ => None,
    }
}

fn big(bytes: &[u8], at: usize, length: usize) -> Option<u32> {
    let digits = bytes.get(at..at + length)?;
    Some(
        digits
            .iter()
            .fold(0, |sum, byte| sum << 8 | u32::from(*byte)),
    )
}

fn little(bytes: &[u8], at: usize, length: usize) -> Option<u32> {
    let digits = bytes.get(at..at + length)?;
    Some(
        digits
            .iter()
            .rev()
            .fold(0, |sum, byte| sum << 8 | u32::from(*byte)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encode(bytes: &[u8]) -> String {
        const DIGITS: &[u8; 64] =
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let mut text = String::new();
        for group in bytes.chunks(3) {
            let bits = group
                .iter()
                .fold(0_u32, |sum, byte| sum << 8 | u32::from(*byte))
                << (8 * (3 - group.len()));
            for at in 0..=group.len() {
                let digit = bits >> (18 - 6 * at) & 0x3f;
                text.push(char::from(DIGITS[digit as usize]));
            }
        }
        while !text.len().is_multiple_of(4) {
            text.push('=');
        }
        text
    }

    fn png(width: u32, height: u32) -> Vec<u8> {
        let mut bytes = b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR".to_vec();
        bytes.extend(width.to_be_bytes());
        bytes.extend(height.to_be_bytes());
        bytes
    }

    #[test]
    fn the_size_of_an_image_is_read_from_its_bytes() {
        let mut jpeg = b"\xff\xd8\xff\xe1\xff\xfe".to_vec();
        jpeg.resize(6 + 0xfffc, 0);
        jpeg.extend(b"\xff\xc4\0\x04\0\0\xff\xff\xc2\0\x11\x08\x02\x58\x03\x20");
        let lossy = b"RIFF\0\0\0\0WEBPVP8 \0\0\0\0\0\0\0\x9d\x01\x2a\x20\x03\x58\x02";
        let lossless = b"RIFF\0\0\0\0WEBPVP8L\0\0\0\0\x2f\x1f\xc3\x95\x10";
        let extended = b"RIFF\0\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0\x1f\x03\0\x57\x02\0";
        let gif = b"GIF89a\x20\x03\x58\x02\0";
        for bytes in [
            &png(800, 600)[..],
            &jpeg,
            &lossy[..],
            &lossless[..],
            &extended[..],
            &gif[..],
        ] {
            let media = from_base64(&encode(bytes), Some("image/X"));
            assert_eq!(
                media.pixels,
                Some((800, 600)),
                "{:?}",
                &bytes[..16.min(bytes.len())]
            );
            assert_eq!(media.bytes, Some(bytes.len() as u64));
            assert_eq!(media.mime.as_deref(), Some("image/x"));
        }
    }

    #[test]
    fn bytes_that_are_no_valid_image_have_no_size() {
        for bytes in [
            &b""[..],
            b"\xff\xd8",
            b"\xff\xd8\xff\xe1\0\0\0\0",
            b"\xff\xd8\xff\xff\xff\xff",
            b"RIFF\0\0\0\0WEBPVP9 ",
            b"RIFF",
            &png(0, 9),
            &png(9, 9)[..20],
            b"%PDF-1.7",
        ] {
            assert_eq!(from_base64(&encode(bytes), None).pixels, None, "{bytes:?}");
        }
    }

    #[test]
    fn media_facts_are_read_only_from_data_urls() {
        assert_eq!(from_url("https://h/cat.png"), Media::default());
        let url = format!("data:image/png;base64,{}", encode(&png(3, 4)));
        let media = from_url(&url);
        assert_eq!(media.pixels, Some((3, 4)));
        assert_eq!(media.mime.as_deref(), Some("image/png"));
        let svg = from_url("data:image/svg+xml;utf8,<svg/>");
        assert_eq!((svg.bytes, svg.pixels), (Some(6), None));
        // Wrapped lines, and the other alphabet.
        let wrapped = from_base64("iVBORw0K\nGgoAAAAN SUhE-_8=", None);
        assert_eq!(wrapped.bytes, Some(17));
    }
}
