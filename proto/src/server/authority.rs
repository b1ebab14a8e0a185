//! Makes the `:authority` of clients that know several addresses acceptable to our HTTP/2 library.
//!
//! gRPC's C core (official Python and C++ clients) given `ipv4:a:1,b:2,c:3` sends that whole list as `:authority`. RFC 3986
//! has no such authority, and the `h2` crate answers every stream of such a connection with PROTOCOL_ERROR. Nothing here
//! reads the authority, so the list is bent into shape where the bytes come in: from the first comma of the value on,
//! commas and colons become dots (`a:1.b.2.c.3`). The length stays, and with it the HPACK state of both sides (RFC 7541 §4.1
//! counts lengths only).
//!
//! A walk over frame headers and over the field boundaries of header blocks; no table is kept and nothing is buffered.
//! Values that are Huffman-coded pass unchanged (the C core does not code them).

/// Client connection preface, RFC 9113 §3.4: `PRI * HTTP/2.0 … SM …`.
const PREFACE_BYTES: u32 = 24;
const FRAME_HEADER_BYTES: usize = 9;
const FRAME_HEADERS: u8 = 1;
const FRAME_CONTINUATION: u8 = 9;
const FLAG_PADDED: u8 = 0x8;
const FLAG_PRIORITY: u8 = 0x20;
const AUTHORITY: &[u8] = b":authority";
/// Index of `:authority` in HPACK's static table.
const AUTHORITY_INDEX: u32 = 1;

/// The walk over one connection's incoming bytes.
#[derive(Debug)]
pub(super) struct AuthorityFilter {
    at: Place,
    fields: FieldWalk,
}

#[derive(Debug)]
enum Place {
    /// So many bytes to pass over, then a frame header.
    Skip(u32),
    FrameHeader {
        seen: usize,
        bytes: [u8; FRAME_HEADER_BYTES],
    },
    /// The pad length byte of a HEADERS frame, whose payload has `left` bytes.
    PadLength {
        left: u32,
        priority: bool,
    },
    /// Bytes before the header block, then the block, then the padding.
    Block {
        before: u32,
        left: u32,
        padding: u32,
    },
}

const AT_FRAME: Place = Place::FrameHeader { seen: 0, bytes: [0; FRAME_HEADER_BYTES] };

impl AuthorityFilter {
    pub(super) fn new() -> AuthorityFilter {
        AuthorityFilter { at: Place::Skip(PREFACE_BYTES), fields: FieldWalk::new() }
    }

    /// Looks at the next bytes of the connection, and bends authorities in place.
    pub(super) fn pass(&mut self, bytes: &mut [u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let taken = self.step(rest);
            rest = &mut rest[taken..];
        }
    }

    /// Takes at least one byte and says how many.
    fn step(&mut self, bytes: &mut [u8]) -> usize {
        match &mut self.at {
            Place::Skip(0) => {
                self.at = AT_FRAME;
                self.step(bytes)
            }
            Place::Skip(left) => {
                let taken = (bytes.len() as u64).min(u64::from(*left)) as u32;
                *left -= taken;
                taken as usize
            }
            Place::FrameHeader { seen, bytes: header } => {
                header[*seen] = bytes[0];
                *seen += 1;
                if *seen == FRAME_HEADER_BYTES {
                    let header = *header;
                    self.at = self.after_header(header);
                }
                1
            }
            Place::PadLength { left, priority } => {
                let padding = u32::from(bytes[0]);
                let left = *left - 1;
                let before = if *priority { 5 } else { 0 };
                // A frame whose padding does not fit is the HTTP/2 library's to refuse.
                let block = left.saturating_sub(padding).saturating_sub(before);
                self.at = Place::Block { before: before.min(left), left: block, padding: padding.min(left) };
                1
            }
            Place::Block { before, left, padding } => {
                if *before > 0 {
                    *before -= 1;
                    return 1;
                }
                if *left == 0 {
                    self.at = Place::Skip(*padding);
                    return self.step(bytes);
                }
                let taken = (bytes.len() as u64).min(u64::from(*left)) as u32;
                *left -= taken;
                for byte in &mut bytes[..taken as usize] {
                    self.fields.pass(byte);
                }
                taken as usize
            }
        }
    }

    fn after_header(&mut self, header: [u8; FRAME_HEADER_BYTES]) -> Place {
        let length = u32::from_be_bytes([0, header[0], header[1], header[2]]);
        let (kind, flags) = (header[3], header[4]);
        match kind {
            FRAME_HEADERS => {
                self.fields = FieldWalk::new();
                let priority = flags & FLAG_PRIORITY != 0;
                if flags & FLAG_PADDED != 0 && length > 0 {
                    return Place::PadLength { left: length, priority };
                }
                let before = if priority { 5.min(length) } else { 0 };
                Place::Block { before, left: length - before, padding: 0 }
            }
            FRAME_CONTINUATION => Place::Block { before: 0, left: length, padding: 0 },
            _ => Place::Skip(length),
        }
    }
}

/// The walk over the fields of one header block, RFC 7541 §6.
#[derive(Debug)]
struct FieldWalk {
    at: Field,
    /// Whether the field's name is `:authority`.
    is_authority: bool,
    /// Whether a comma was seen in the authority.
    is_list: bool,
}

#[derive(Debug)]
enum Field {
    Start,
    /// The rest of an integer that is only passed over (an indexed field, a table size).
    Number,
    /// The rest of a name's index.
    NameIndex,
    NameLength(Length),
    Name {
        left: u32,
        seen: usize,
        matches: bool,
    },
    ValueLength(Length),
    Value {
        left: u32,
        is_plain: bool,
    },
}

/// A string's length, of which so much is known.
#[derive(Debug, Default)]
struct Length {
    is_started: bool,
    is_plain: bool,
    value: u32,
    shift: u32,
}

impl Length {
    /// Takes a byte; true once the length is complete. A length beyond 32 bits is nonsense that the HTTP/2 library refuses.
    fn take(&mut self, byte: u8) -> bool {
        if !self.is_started {
            self.is_started = true;
            self.is_plain = byte & 0x80 == 0;
            self.value = u32::from(byte & 0x7f);
            return self.value < 0x7f;
        }
        let part = u32::from(byte & 0x7f).checked_shl(self.shift).unwrap_or(0);
        self.value = self.value.saturating_add(part);
        self.shift += 7;
        byte & 0x80 == 0
    }
}

impl FieldWalk {
    fn new() -> FieldWalk {
        FieldWalk { at: Field::Start, is_authority: false, is_list: false }
    }

    fn pass(&mut self, byte: &mut u8) {
        match &mut self.at {
            Field::Start => self.at = self.start(*byte),
            Field::Number => {
                if *byte & 0x80 == 0 {
                    self.at = Field::Start;
                }
            }
            Field::NameIndex => {
                if *byte & 0x80 == 0 {
                    self.at = Field::ValueLength(Length::default());
                }
            }
            Field::NameLength(length) => {
                if length.take(*byte) {
                    let matches = length.is_plain && length.value as usize == AUTHORITY.len();
                    self.at = match length.value {
                        0 => Field::ValueLength(Length::default()),
                        left => Field::Name { left, seen: 0, matches },
                    };
                }
            }
            Field::Name { left, seen, matches } => {
                *matches &= AUTHORITY.get(*seen) == Some(byte);
                *seen += 1;
                *left -= 1;
                if *left == 0 {
                    self.is_authority = *matches;
                    self.at = Field::ValueLength(Length::default());
                }
            }
            Field::ValueLength(length) => {
                if length.take(*byte) {
                    self.is_list = false;
                    self.at = match length.value {
                        0 => Field::Start,
                        left => Field::Value { left, is_plain: length.is_plain },
                    };
                }
            }
            Field::Value { left, is_plain } => {
                if self.is_authority && *is_plain {
                    self.is_list |= *byte == b',';
                    if self.is_list && matches!(*byte, b',' | b':') {
                        *byte = b'.';
                    }
                }
                *left -= 1;
                if *left == 0 {
                    self.at = Field::Start;
                }
            }
        }
    }

    /// What a field's first byte says, by its leading bits.
    fn start(&mut self, byte: u8) -> Field {
        self.is_authority = false;
        let (prefix, is_literal) = match byte {
            0x80.. => (0x7f, false),
            0x40.. => (0x3f, true),
            0x20.. => (0x1f, false),
            _ => (0x0f, true),
        };
        let index = u32::from(byte & prefix);
        let goes_on = index == u32::from(prefix);
        match (is_literal, goes_on, index) {
            (false, false, _) => Field::Start,
            (false, true, _) => Field::Number,
            (true, true, _) => Field::NameIndex,
            (true, false, 0) => Field::NameLength(Length::default()),
            (true, false, index) => {
                self.is_authority = index == AUTHORITY_INDEX;
                Field::ValueLength(Length::default())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIST: &[u8] = b"127.0.0.1:8081,127.0.0.1:8082";
    const BENT: &[u8] = b"127.0.0.1:8081.127.0.0.1.8082";

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let mut bytes = vec![length[1], length[2], length[3], kind, flags, 0, 0, 0, 1];
        bytes.extend_from_slice(payload);
        bytes
    }

    fn literal(first: &[u8], value: &[u8]) -> Vec<u8> {
        let mut bytes = first.to_vec();
        bytes.push(u8::try_from(value.len()).unwrap());
        bytes.extend_from_slice(value);
        bytes
    }

    /// A connection with every shape of field around the authority, once by index and once by name.
    fn connection(authority: &[u8]) -> Vec<u8> {
        let mut by_index = vec![0x83, 0x86, 0x3f, 0x11]; // two indexed fields, a table size update
        by_index.extend(literal(&[0x44], b"/a,b:c")); // :path, which must stay as it is
        by_index.extend(literal(&[0x41], authority));
        by_index.extend(literal(&[0x0f, 0x13], b"x,y")); // a name index that needs two bytes
        let mut by_name = literal(&[0x40], b":authority");
        by_name.extend(literal(&[], authority));
        by_name.extend(literal(&[0x10], b"x-list"));
        by_name.extend(literal(&[], b"1,2:3"));
        let mut padded = vec![3, 0, 0, 0, 0, 7]; // pad length, priority
        padded.extend_from_slice(&by_name);
        padded.extend_from_slice(b",:,");
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        bytes.extend(frame(4, 0, &[0, 3, 0, 0, 0, 100]));
        bytes.extend(frame(FRAME_HEADERS, 0, &by_index[..12]));
        bytes.extend(frame(FRAME_CONTINUATION, 4, &by_index[12..]));
        bytes.extend(frame(0, 1, b"a body with ,:, in it"));
        bytes.extend(frame(FRAME_HEADERS, 4 | FLAG_PADDED | FLAG_PRIORITY, &padded));
        bytes
    }

    #[test]
    fn a_list_of_addresses_becomes_one_authority_of_the_same_length() {
        let mut bytes = connection(LIST);
        AuthorityFilter::new().pass(&mut bytes);
        assert_eq!(bytes, connection(BENT));
    }

    #[test]
    fn a_single_address_passes_unchanged() {
        for authority in [&b"127.0.0.1:8081"[..], b"[::1]:8081", b"broker.example:1", b"x"] {
            let mut bytes = connection(authority);
            AuthorityFilter::new().pass(&mut bytes);
            assert_eq!(bytes, connection(authority));
        }
    }

    proptest! {
        #[test]
        fn reads_may_end_anywhere(cuts in prop::collection::vec(0_usize..250, 0..20)) {
            let mut bytes = connection(LIST);
            let mut filter = AuthorityFilter::new();
            let mut cuts: Vec<usize> = cuts.into_iter().filter(|cut| *cut < bytes.len()).collect();
            cuts.sort_unstable();
            let mut from = 0;
            for cut in cuts.into_iter().chain([bytes.len()]) {
                filter.pass(&mut bytes[from..cut]);
                from = cut;
            }
            prop_assert_eq!(bytes, connection(BENT));
        }

        #[test]
        fn arbitrary_bytes_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            AuthorityFilter::new().pass(&mut bytes);
        }
    }
}
