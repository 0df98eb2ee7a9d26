//! The tokens of images, files and sound, by the rules that providers publish. The model name tells the
//! provider; an unknown name counts as OpenAI.
//!
//! If the size of an image is unknown, it is estimated from the number of bytes; without that, a common
//! size is assumed. The estimate is rather too high than too low, because an underestimated message is
//! activated too late.

use crate::history::{AttachmentKind, Detail, Media};

/// Tokens of an attachment; `None` if only its name is known.
pub(super) fn tokens(kind: AttachmentKind, media: &Media, model: &str) -> Option<u32> {
    let family = PricingFamily::for_model(model);
    let is_image = media
        .mime
        .as_deref()
        .is_some_and(|mime| mime.starts_with("image/"));
    match kind {
        AttachmentKind::Image => Some(family.image_tokens(media)),
        AttachmentKind::File if is_image => Some(family.image_tokens(media)),
        AttachmentKind::File => Some(family.file_tokens(media, media.bytes?)),
        AttachmentKind::Audio => Some(family.audio_tokens(media)),
    }
}

/// The provider whose rules apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PricingFamily {
    /// Tokens for an image, and for each of its tiles.
    OpenAi {
        base: u32,
        tile: u32,
    },
    Anthropic,
    Gemini3,
    Gemini,
}

/// Tiles by file size in bytes, if the pixels are unknown.
const TILES_BY_BYTES: [(u64, u32); 3] = [(512 << 10, 1), (2 << 20, 4), (4 << 20, 6)];
const MAX_TILES: u32 = 8;

/// Tiles of an unknown image: 1024 x 1024.
const DEFAULT_TILES: u32 = 4;

impl PricingFamily {
    fn for_model(model: &str) -> Self {
        let model = model.to_ascii_lowercase();
        // Gateways put the provider in front: "openai/gpt-4o", "models/gemini-3-pro".
        let name = model.rsplit('/').next().unwrap_or(&model);
        let openai = |base, tile| Self::OpenAi { base, tile };
        if name.contains("claude") {
            Self::Anthropic
        } else if name.starts_with("gemini-3") {
            Self::Gemini3
        } else if name.starts_with("gemini") {
            Self::Gemini
        } else if name.starts_with("gpt-4o-mini") {
            openai(2_833, 5_667)
        } else if name.starts_with("gpt-5") {
            openai(70, 140)
        } else if name.starts_with("o1") || name.starts_with("o3") {
            openai(75, 150)
        } else if name.starts_with("computer-use") {
            openai(65, 129)
        } else {
            openai(85, 170)
        }
    }

    fn image_tokens(self, media: &Media) -> u32 {
        match self {
            Self::OpenAi { base, tile } => {
                base.saturating_add(tile.saturating_mul(openai_tiles(media)))
            }
            Self::Anthropic => anthropic_image_tokens(media),
            Self::Gemini3 if media.detail == Detail::Low => 280,
            Self::Gemini3 => 1_120,
            Self::Gemini => 258_u32.saturating_mul(gemini_tiles(media)),
        }
    }

    fn file_tokens(self, media: &Media, bytes: u64) -> u32 {
        let tokens = if media.mime.as_deref() == Some("application/pdf") {
            match self {
                Self::Gemini | Self::Gemini3 => (bytes / 20).max(258),
                Self::Anthropic => (bytes / 3).max(1_500),
                Self::OpenAi { .. } => (bytes / 4).max(500),
            }
        } else {
            bytes / 4
        };
        u32::try_from(tokens).unwrap_or(u32::MAX)
    }

    /// Estimated from the duration, which follows from the size: 48,000 bytes a second for
    /// uncompressed sound (24 kHz, 16 bit), 16,000 for the usual compressed formats. Ten tokens a
    /// second by OpenAI's prices, 32 by Google's. Half a minute if the size is unknown.
    fn audio_tokens(self, media: &Media) -> u32 {
        let bytes_per_second = match media.mime.as_deref() {
            Some(format) if format.contains("wav") || format.contains("pcm") => 48_000,
            _ => 16_000,
        };
        let tenths = media
            .bytes
            .map_or(300, |bytes| bytes * 10 / bytes_per_second);
        let tokens = match self {
            Self::Gemini | Self::Gemini3 => tenths * 32 / 10,
            Self::OpenAi { .. } | Self::Anthropic => tenths,
        };
        u32::try_from(tokens).unwrap_or(u32::MAX)
    }
}

fn tiles_by_bytes(bytes: u64) -> u32 {
    TILES_BY_BYTES
        .iter()
        .find(|(max, _)| bytes <= *max)
        .map_or(MAX_TILES, |(_, tiles)| *tiles)
}

/// The image is fitted into 2,048 x 2,048, then its short side to 768, then cut into squares of 512. In
/// low detail it has no tiles.
fn openai_tiles(media: &Media) -> u32 {
    let low = match (media.detail, media.pixels, media.bytes) {
        (Detail::Low, _, _) => true,
        (Detail::High, _, _) | (Detail::Auto, None, None) => false,
        (Detail::Auto, Some((width, height)), _) => width.max(height) <= 768,
        (Detail::Auto, None, Some(bytes)) => bytes <= 1 << 20,
    };
    if low {
        return 0;
    }
    let Some(pixels) = media.pixels else {
        return media.bytes.map_or(DEFAULT_TILES, tiles_by_bytes);
    };
    let (width, height) = scale_down(pixels, pixels.0.max(pixels.1), 2_048);
    let (width, height) = scale_down((width, height), width.min(height), 768);
    width.div_ceil(512) * height.div_ceil(512)
}

fn anthropic_image_tokens(media: &Media) -> u32 {
    let Some(pixels) = media.pixels else {
        return match media.bytes.map(tiles_by_bytes) {
            None => 1_600,
            Some(1) => 341,
            Some(4) => 1_366,
            Some(6) => 2_048,
            Some(_) => 2_731,
        };
    };
    let (width, height) = scale_down(pixels, pixels.0.max(pixels.1), 1_568);
    (width * height).div_ceil(750)
}

/// One tile for a small image or low detail, otherwise the number of squares of 768 that cover it.
fn gemini_tiles(media: &Media) -> u32 {
    match (media.detail, media.pixels) {
        (Detail::Low, _) => 1,
        (_, Some((width, height))) if width <= 384 && height <= 384 => 1,
        (_, Some((width, height))) => width.div_ceil(768).saturating_mul(height.div_ceil(768)),
        (_, None) => media.bytes.map_or(DEFAULT_TILES, tiles_by_bytes),
    }
}

/// `pixels` scaled down so that `side`, one of its sides, is at most `max`.
fn scale_down((width, height): (u32, u32), side: u32, max: u32) -> (u32, u32) {
    if side <= max {
        return (width, height);
    }
    let scale = |length: u32| {
        let scaled = (u64::from(length) * u64::from(max)).div_ceil(u64::from(side));
        // The result is smaller than the input, so it fits.
        u32::try_from(scaled).unwrap_or(length).max(1)
    };
    (scale(width), scale(height))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sized(width: u32, height: u32, detail: Detail) -> Media {
        Media {
            pixels: Some((width, height)),
            bytes: Some(1),
            detail,
            ..Media::default()
        }
    }

    fn media_of_bytes(bytes: u64, mime: &str) -> Media {
        Media {
            mime: Some(mime.to_owned()),
            bytes: Some(bytes),
            ..Media::default()
        }
    }

    fn picture(model: &str, media: &Media) -> u32 {
        tokens(AttachmentKind::Image, media, model).expect("a picture always weighs")
    }

    #[test]
    fn openai_image_tokens_are_counted_by_tiles() {
        use Detail::{Auto, High, Low};
        for (width, height, detail, tiles) in [
            (1_024, 1_024, High, 4),
            (2_048, 4_096, High, 6),
            (4_096, 8_192, Low, 0),
            (512, 512, High, 1),
            (768, 768, Auto, 0),
            (769, 100, Auto, 2),
            (1, 100_000, High, 4),
            (u32::MAX, u32::MAX, High, 4),
        ] {
            let media = sized(width, height, detail);
            let size = format!("{width} x {height} {detail:?}");
            assert_eq!(picture("gpt-4o", &media), 85 + 170 * tiles, "{size}");
            assert_eq!(picture("gpt-5-mini", &media), 70 + 140 * tiles, "{size}");
            assert_eq!(
                picture("openai/gpt-4o-mini", &media),
                2_833 + 5_667 * tiles,
                "{size}"
            );
            assert_eq!(picture("o3", &media), 75 + 150 * tiles, "{size}");
            assert_eq!(
                picture("computer-use-preview", &media),
                65 + 129 * tiles,
                "{size}"
            );
        }
    }

    #[test]
    fn an_image_without_pixels_is_estimated_by_bytes_or_a_default_size() {
        let high = |bytes| Media {
            detail: Detail::High,
            ..media_of_bytes(bytes, "image/png")
        };
        for (bytes, tiles, anthropic) in [
            (512 << 10, 1, 341),
            (2 << 20, 4, 1_366),
            (4 << 20, 6, 2_048),
            ((4 << 20) + 1, 8, 2_731),
        ] {
            assert_eq!(picture("gpt-4o", &high(bytes)), 85 + 170 * tiles, "{bytes}");
            assert_eq!(
                picture("claude-sonnet-4", &high(bytes)),
                anthropic,
                "{bytes}"
            );
            assert_eq!(
                picture("gemini-2.5-flash", &high(bytes)),
                258 * tiles,
                "{bytes}"
            );
        }
        let auto = |bytes| picture("gpt-4o", &media_of_bytes(bytes, "image/png"));
        assert_eq!((auto(1 << 20), auto((1 << 20) + 1)), (85, 765));
        let unknown = Media::default();
        assert_eq!(picture("gpt-4o", &unknown), 765);
        assert_eq!(picture("anthropic/claude-opus-4", &unknown), 1_600);
        assert_eq!(picture("whatever", &unknown), 765);
    }

    #[test]
    fn anthropic_counts_area_and_gemini_squares_or_a_resolution() {
        let high = |width, height| sized(width, height, Detail::High);
        assert_eq!(picture("claude-haiku-4-5", &high(750, 1_000)), 1_000);
        // 1,568 x 784 after shrinking.
        assert_eq!(picture("claude-haiku-4-5", &high(3_136, 1_568)), 1_640);
        assert_eq!(picture("gemini-2.5-pro", &high(384, 384)), 258);
        assert_eq!(picture("gemini-2.5-pro", &high(1_024, 700)), 516);
        assert_eq!(picture("models/gemini-3-pro", &high(9_000, 9_000)), 1_120);
        let low = sized(9_000, 9_000, Detail::Low);
        assert_eq!(picture("gemini-3-pro", &low), 280);
        assert_eq!(picture("gemini-2.0-flash", &low), 258);
        assert!(picture("gpt-4o", &low) < picture("gpt-4o", &high(9_000, 9_000)));
    }

    #[test]
    fn file_tokens_depend_on_bytes_and_image_files_count_as_images() {
        let file = |model, media: &Media| tokens(AttachmentKind::File, media, model);
        let pdf = media_of_bytes(60_000, "application/pdf");
        assert_eq!(file("gpt-4o", &pdf), Some(15_000));
        assert_eq!(file("claude-opus-4", &pdf), Some(20_000));
        assert_eq!(file("gemini-2.5-pro", &pdf), Some(3_000));
        let small = media_of_bytes(30, "application/pdf");
        assert_eq!(file("gpt-4o", &small), Some(500));
        assert_eq!(file("claude-opus-4", &small), Some(1_500));
        assert_eq!(file("gemini-3-pro", &small), Some(258));
        assert_eq!(file("gpt-4o", &media_of_bytes(400, "text/csv")), Some(100));
        assert_eq!(file("gpt-4o", &media_of_bytes(400, "image/png")), Some(85));
        assert_eq!(file("gpt-4o", &Media::default()), None);
    }

    #[test]
    fn audio_tokens_depend_on_the_length_of_the_audio() {
        let sound = |model, media: &Media| tokens(AttachmentKind::Audio, media, model);
        assert_eq!(
            sound("gpt-4o-audio", &media_of_bytes(480_000, "wav")),
            Some(100)
        );
        assert_eq!(
            sound("gpt-4o-audio", &media_of_bytes(160_000, "mp3")),
            Some(100)
        );
        assert_eq!(
            sound("gemini-2.5-pro", &media_of_bytes(160_000, "mp3")),
            Some(320)
        );
        assert_eq!(sound("gpt-4o-audio", &Media::default()), Some(300));
    }
}
