//! Archives written entry by entry, as no builder would if need be.

/// An archive in the making.
#[derive(Debug, Clone, Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
}

/// One entry of it.
#[derive(Debug, Clone)]
pub(crate) struct Piece<'a> {
    pub(crate) kind: u8,
    pub(crate) name: &'a str,
    pub(crate) link: &'a str,
    pub(crate) content: &'a [u8],
    pub(crate) mode: u32,
    pub(crate) owner: (u32, u32),
    pub(crate) modified: u64,
    pub(crate) device: (u32, u32),
}

pub(crate) const fn piece<'a>(kind: u8, name: &'a str) -> Piece<'a> {
    Piece {
        kind,
        name,
        link: "",
        content: b"",
        mode: 0o644,
        owner: (0, 0),
        modified: 1_700_000_000,
        device: (0, 0),
    }
}

impl Archive {
    pub(crate) fn add(mut self, piece: &Piece<'_>) -> Self {
        let mut header = [0_u8; 512];
        let mut put = |at: usize, text: &[u8]| header[at..at + text.len()].copy_from_slice(text);
        put(0, piece.name.as_bytes());
        put(100, format!("{:07o}\0", piece.mode).as_bytes());
        put(108, format!("{:07o}\0", piece.owner.0).as_bytes());
        put(116, format!("{:07o}\0", piece.owner.1).as_bytes());
        put(124, format!("{:011o}\0", piece.content.len()).as_bytes());
        put(136, format!("{:011o}\0", piece.modified).as_bytes());
        put(148, b"        ");
        put(156, &[piece.kind]);
        put(157, piece.link.as_bytes());
        put(257, b"ustar\x0000");
        put(329, format!("{:07o}\0", piece.device.0).as_bytes());
        put(337, format!("{:07o}\0", piece.device.1).as_bytes());
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.bytes.extend(header);
        self.bytes.extend(piece.content);
        self.bytes.resize(self.bytes.len().next_multiple_of(512), 0);
        self
    }

    pub(crate) fn file(self, name: &str, content: &[u8]) -> Self {
        self.add(&Piece {
            content,
            ..piece(b'0', name)
        })
    }

    pub(crate) fn folder(self, name: &str) -> Self {
        self.add(&Piece {
            mode: 0o755,
            ..piece(b'5', name)
        })
    }

    pub(crate) fn link(self, name: &str, target: &str) -> Self {
        self.add(&Piece {
            link: target,
            mode: 0o777,
            ..piece(b'2', name)
        })
    }

    pub(crate) fn hard_link(self, name: &str, target: &str) -> Self {
        self.add(&Piece {
            link: target,
            ..piece(b'1', name)
        })
    }

    /// A header of POSIX that speaks about the next entry.
    pub(crate) fn records(self, records: &[(&str, &[u8])]) -> Self {
        let mut content = Vec::new();
        for (key, value) in records {
            let rest = key.len() + value.len() + 3;
            let length = (rest..).find(|all| all.to_string().len() + rest == *all);
            content.extend(format!("{} {key}=", length.unwrap()).bytes());
            content.extend(*value);
            content.push(b'\n');
        }
        self.add(&Piece {
            content: &content,
            ..piece(b'x', "records")
        })
    }

    pub(crate) fn end(mut self) -> Vec<u8> {
        self.bytes.extend([0; 1024]);
        self.bytes
    }
}
