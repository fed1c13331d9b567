//! How many connections from outside an instance still has.
//!
//! Read from the kernel's own tables of the instance's network, so nobody
//! inside is asked. Who lies about it only delays its own end, and no longer
//! than its drain may take.

use std::collections::BTreeSet;
use std::fs;

/// States of a connection in the kernel's tables.
const LISTENS: &str = "0A";
/// In use, about to be, or closed by one side only.
const OPEN: [&str; 5] = ["01", "03", "04", "05", "08"];

/// The connections from outside in the network of a process; none if they
/// cannot be seen.
pub(crate) fn of_process(pid: u32) -> Option<u64> {
    let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/net/{name}")).ok();
    Some(count(&[&read("tcp")?, &read("tcp6")?]))
}

/// Counts connections to ports that somebody listens on, but for those that
/// come from inside.
fn count(tables: &[&str]) -> u64 {
    let rows = || tables.iter().flat_map(|table| table.lines().skip(1));
    let rows = || rows().filter_map(row);
    let listens: BTreeSet<&str> = rows()
        .filter(|row| row.state == LISTENS)
        .map(|row| row.local.1)
        .collect();
    let open = rows().filter(|row| {
        OPEN.contains(&row.state) && listens.contains(row.local.1) && !row.is_inside()
    });
    u64::try_from(open.count()).unwrap_or(u64::MAX)
}

struct Row<'a> {
    /// Address and port, as the table writes them.
    local: (&'a str, &'a str),
    remote: (&'a str, &'a str),
    state: &'a str,
}

fn row(line: &str) -> Option<Row<'_>> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    Some(Row {
        local: fields.next()?.split_once(':')?,
        remote: fields.next()?.split_once(':')?,
        state: fields.next()?,
    })
}

impl Row<'_> {
    /// Whether both ends are in the instance.
    fn is_inside(&self) -> bool {
        let (from, to) = (self.remote.0, self.local.0);
        // 127.0.0.0/8, by itself and as the newer kind, and ::1.
        from == to
            || (from.len() == 8 && from.ends_with("7F"))
            || (from.starts_with("0000000000000000FFFF0000") && from.ends_with("7F"))
            || from == "00000000000000000000000001000000"
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    const HEAD: &str = "  sl  local_address rem_address   st tx_queue rx_queue\n";

    #[test]
    fn only_what_comes_from_outside_to_a_listener_counts() {
        let six = format!(
            "{HEAD}\
             0: 00000000000000000000000000000000:1F90 00000000000000000000000000000000:0000 0A 0\n\
             1: 000012FD00000000000000000A000000:1F90 000012FD000000000000000001000000:C350 01 0\n\
             2: 000012FD00000000000000000A000000:1F90 000012FD000000000000000001000000:C351 08 0\n\
             3: 000012FD00000000000000000A000000:1F90 000012FD000000000000000001000000:C352 06 0\n\
             4: 000012FD00000000000000000A000000:9C40 000012FD000000000000000002000000:1538 01 0\n\
             5: 00000000000000000000000001000000:1F90 00000000000000000000000001000000:C353 01 0\n\
             6: 0000000000000000FFFF00000100007F:1F90 0000000000000000FFFF00000100007F:C353 01 0\n\
             garbage\n"
        );
        let four = format!("{HEAD}0: 0100007F:1F90 0100007F:C353 01 0\n");
        assert_eq!(count(&[&four, &six]), 2);
        assert_eq!(count(&["", "\u{1f}\n:::\n"]), 0);
    }

    #[test]
    fn the_kernels_tables_are_read() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        client.write_all(b"x").unwrap();
        // From this machine to itself, so it is not counted, but it is seen.
        assert!(of_process(std::process::id()).is_some());
        assert_eq!(of_process(u32::MAX), None);
    }
}
