use std::io::Write as _;

use bytes::Bytes;
use http::HeaderValue;

use super::{Decoder, Encoding, Undecodable};

fn decode(encoding: Encoding, body: &[u8], size: usize) -> Result<Vec<u8>, Undecodable> {
    let mut decoder = Decoder::new(encoding);
    let mut out = Vec::new();
    for piece in body.chunks(size) {
        out.extend_from_slice(&decoder.push(Bytes::copy_from_slice(piece))?);
    }
    out.extend_from_slice(&decoder.finish()?);
    Ok(out)
}

fn gzip(plain: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(plain).unwrap();
    encoder.finish().unwrap()
}

fn zlib(plain: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(plain).unwrap();
    encoder.finish().unwrap()
}

fn bare(plain: &[u8]) -> Vec<u8> {
    let mut encoder =
        flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(plain).unwrap();
    encoder.finish().unwrap()
}

fn zstd(plain: &[u8]) -> Vec<u8> {
    ruzstd::encoding::compress_to_vec(plain, ruzstd::encoding::CompressionLevel::Fastest)
}

/// Brotli without an encoder: one stream of uncompressed blocks (RFC 7932, 9.2).
fn brotli(plain: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut header = 0u64; // WBITS = 16: one zero bit
    let mut bits = 1;
    for chunk in plain.chunks(1 << 16) {
        // ISLAST = 0, MNIBBLES = 4 (00), MLEN - 1 in 16 bits, ISUNCOMPRESSED = 1, then whole bytes.
        let length = chunk.len() as u64 - 1;
        header |= (length << 3) << bits;
        header |= 1 << (bits + 19);
        let width: usize = bits + 20;
        out.extend_from_slice(&header.to_le_bytes()[..width.div_ceil(8)]);
        out.extend_from_slice(chunk);
        header = 0;
        bits = 0;
    }
    out.push(3); // ISLAST = 1, ISLASTEMPTY = 1
    out
}

const TEXT: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"Grüße 日本\"}}]}\n\n";

#[test]
fn every_encoding_is_decoded_in_every_piece_size() {
    for plain in [TEXT.to_owned(), TEXT.repeat(4000)] {
        let plain = plain.as_bytes();
        for (encoding, body) in [
            (Encoding::Identity, plain.to_vec()),
            (Encoding::Gzip, gzip(plain)),
            (Encoding::Deflate, zlib(plain)),
            (Encoding::Deflate, bare(plain)),
            (Encoding::Brotli, brotli(plain)),
            (Encoding::Zstd, zstd(plain)),
        ] {
            for size in [1, 2, 7, 1000, body.len()] {
                let decoded = decode(encoding, &body, size).unwrap();
                assert!(decoded == plain, "{encoding:?} in pieces of {size}");
            }
        }
    }
}

#[test]
fn a_flushed_gzip_event_is_decoded_at_once() {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    let mut decoder = Decoder::new(Encoding::Gzip);
    for _ in 0..3 {
        encoder.write_all(TEXT.as_bytes()).unwrap();
        encoder.flush().unwrap();
        let piece = std::mem::take(encoder.get_mut());
        assert_eq!(decoder.push(piece.into()).unwrap(), TEXT);
    }
}

#[test]
fn a_decompression_bomb_is_refused() {
    let bomb = vec![0; 24 * 1024 * 1024];
    for (encoding, body) in [
        (Encoding::Gzip, gzip(&bomb)),
        (Encoding::Deflate, zlib(&bomb)),
        (Encoding::Zstd, zstd_bomb(bomb.len())),
    ] {
        let mut decoder = Decoder::new(encoding);
        let mut bytes_out = 0;
        let gave_up =
            body.chunks(16 * 1024)
                .any(|piece| match decoder.push(Bytes::copy_from_slice(piece)) {
                    Ok(decoded) => {
                        bytes_out += decoded.len();
                        false
                    }
                    Err(Undecodable) => true,
                });
        assert!(gave_up, "{encoding:?}");
        assert!(
            bytes_out <= 16 * 1024 * 1024,
            "{encoding:?} gave {bytes_out} bytes"
        );
    }
}

/// A frame of run-length blocks: four bytes of input for each 128 KiB of output.
fn zstd_bomb(size: usize) -> Vec<u8> {
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0, 7 << 3];
    let block = 128 * 1024;
    for _ in 0..size / block {
        let header = u32::try_from(block).unwrap() << 3 | 1 << 1;
        frame.extend_from_slice(&header.to_le_bytes()[..3]);
        frame.push(0);
    }
    frame
}

#[test]
fn a_zstd_window_of_gigabytes_is_refused() {
    let mut decoder = Decoder::new(Encoding::Zstd);
    let huge = [0x28, 0xb5, 0x2f, 0xfd, 0, 24 << 3, 1, 0, 0];
    assert!(decoder.push(Bytes::copy_from_slice(&huge)).is_err());
}

#[test]
fn broken_and_cut_bodies_are_an_error_and_no_panic() {
    let plain = TEXT.repeat(50);
    for (encoding, body) in [
        (Encoding::Gzip, gzip(plain.as_bytes())),
        (Encoding::Deflate, zlib(plain.as_bytes())),
        (Encoding::Brotli, brotli(plain.as_bytes())),
        (Encoding::Zstd, zstd(plain.as_bytes())),
    ] {
        assert!(
            decode(encoding, &body[..body.len() / 2], 64).is_err(),
            "{encoding:?} cut"
        );
        let noise = b"this is not compressed at all, by nobody".repeat(3);
        assert!(decode(encoding, &noise, 64).is_err(), "{encoding:?} noise");
        for at in 0..body.len() {
            let mut broken = body.clone();
            broken[at] ^= 0x55;
            let _ = decode(encoding, &broken, 64);
        }
    }
    assert!(decode(Encoding::Other, b"x", 1).is_err());
    assert_eq!(decode(Encoding::Gzip, b"", 1).unwrap(), b"");
}

#[test]
fn the_encoding_is_read_from_the_header() {
    let encoding =
        |value: &str| Encoding::from_header(Some(&HeaderValue::from_str(value).unwrap()));
    assert_eq!(Encoding::from_header(None), Encoding::Identity);
    assert_eq!(encoding(" GZIP "), Encoding::Gzip);
    assert_eq!(encoding("br"), Encoding::Brotli);
    assert_eq!(encoding("zstd"), Encoding::Zstd);
    assert_eq!(encoding("gzip, gzip"), Encoding::Other);
    assert_eq!(encoding("snappy"), Encoding::Other);
}
