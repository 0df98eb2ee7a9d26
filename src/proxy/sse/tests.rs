use proptest::prelude::*;

use super::{EventReader, MAX_BLOCK};

fn read(pieces: &[&[u8]]) -> (Vec<String>, EventReader) {
    let mut reader = EventReader::default();
    let mut events = Vec::new();
    let mut keep = |data: &str| events.push(data.to_owned());
    for piece in pieces {
        reader.push(piece, &mut keep);
    }
    reader.finish(&mut keep);
    (events, reader)
}

fn whole(text: &[u8]) -> Vec<String> {
    read(&[text]).0
}

const STREAM: &str = ": keep-alive\n\ndata: {\"a\":1}\n\nevent: x\nid: 7\ndata: zwei\ndata: Zeilen 日本 🙂\n\ndata:[DONE]\n\n";

fn expected() -> Vec<String> {
    ["{\"a\":1}", "zwei\nZeilen 日本 🙂", "[DONE]"]
        .map(str::to_owned)
        .to_vec()
}

#[test]
fn events_are_read_with_every_line_ending_split_and_piece_size() {
    for ending in ["\n", "\r\n", "\r"] {
        let text = STREAM.replace('\n', ending);
        let bytes = text.as_bytes();
        assert_eq!(whole(bytes), expected(), "{ending:?}");
        for at in 0..=bytes.len() {
            let (head, tail) = bytes.split_at(at);
            assert_eq!(read(&[head, tail]).0, expected(), "{ending:?} cut at {at}");
        }
        for size in 1..9 {
            let pieces: Vec<&[u8]> = bytes.chunks(size).collect();
            assert_eq!(
                read(&pieces).0,
                expected(),
                "{ending:?} in pieces of {size}"
            );
        }
    }
}

#[test]
fn the_last_event_counts_without_its_blank_line() {
    for tail in ["", "\n", "\r\n", "\r"] {
        let text = format!("data: a\n\ndata: b{tail}");
        assert_eq!(whole(text.as_bytes()), ["a", "b"], "{tail:?}");
    }
}

#[test]
fn a_byte_order_mark_is_skipped_only_at_the_start() {
    let mut marked = b"\xef\xbb\xbf".to_vec();
    marked.extend_from_slice(STREAM.as_bytes());
    assert_eq!(whole(&marked), expected());
    let pieces: Vec<&[u8]> = marked.chunks(1).collect();
    assert_eq!(read(&pieces).0, expected());
    assert_eq!(whole("\u{feff}data: a\n\n".as_bytes()), ["a"]);
    // Two marks, and a mark at the start of a later block: a field name nobody knows.
    assert_eq!(
        whole(b"\xef\xbb\xbf\xef\xbb\xbfdata: a\n\ndata: b\n\n"),
        ["b"]
    );
    assert_eq!(
        whole("data: a\n\n\u{feff}data: b\n\ndata: c\n\n".as_bytes()),
        ["a", "c"]
    );
}

#[test]
fn broken_utf8_is_replaced_and_reading_continues() {
    let (events, reader) = read(&[b"data: a\xff\xfeb\n\ndata: c\n\n"]);
    assert_eq!(events, ["a\u{fffd}\u{fffd}b", "c"]);
    assert!(reader.is_complete());
}

#[test]
fn an_event_over_the_size_limit_is_left_out_and_reported() {
    let mut text = b"data: a\n\ndata: ".to_vec();
    text.resize(text.len() + MAX_BLOCK, b'x');
    text.extend_from_slice(b"\n\ndata: b\n\n");
    for size in [1024, 64 * 1024, text.len()] {
        let pieces: Vec<&[u8]> = text.chunks(size).collect();
        let (events, reader) = read(&pieces);
        assert_eq!(events, ["a", "b"], "in pieces of {size}");
        assert!(!reader.is_complete());
    }
}

#[test]
fn the_work_of_reading_is_linear_in_the_bytes() {
    // One line of 4 MiB: given up at the cap. One just under the cap: copied once, parsed once.
    let long = [b"data: ".as_slice(), &vec![b'x'; 4 * MAX_BLOCK]].concat();
    let near = [b"data: ".as_slice(), &vec![b'x'; MAX_BLOCK - 8], b"\n\n"].concat();
    let many = b"data:x\n".repeat(100_000);
    let events = b"data: {}\n\n".repeat(50_000);
    for text in [long, near, many, events] {
        for size in [1024, 64 * 1024] {
            let pieces: Vec<&[u8]> = text.chunks(size).collect();
            let (_, reader) = read(&pieces);
            assert!(
                reader.work <= 2 * text.len() as u64,
                "{} for {}",
                reader.work,
                text.len()
            );
        }
    }
}

proptest! {
    #[test]
    fn any_bytes_give_the_same_events_in_any_pieces(
        bytes in proptest::collection::vec(prop_oneof![
            Just(b'\n'), Just(b'\r'), Just(b':'), Just(b' '), Just(b'd'), Just(0xef), Just(0xbb), Just(0xbf), any::<u8>()
        ], 0..200),
        data in proptest::collection::vec("(data: ?[a-z]{0,3}(\r\n|\n|\r)){0,3}(\r\n|\n|\r)", 0..6),
        size in 1usize..7,
    ) {
        let mut text = data.concat().into_bytes();
        text.extend_from_slice(&bytes);
        let pieces: Vec<&[u8]> = text.chunks(size).collect();
        prop_assert_eq!(read(&pieces).0, whole(&text));
    }

    /// A comment in front of a block sends it through the parser.
    #[test]
    fn a_one_line_event_is_read_as_by_the_full_parser(
        block in "(data|dat|id)?:? ?[ a-z:\u{feff}\u{0}é\\r\\n]{0,6}(\r\n\r\n|\n\n|\r\r|\r\n|\n)",
    ) {
        let parsed = format!(":\n{block}");
        prop_assert_eq!(whole(block.as_bytes()), whole(parsed.as_bytes()));
    }
}
