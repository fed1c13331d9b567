//! How many connections from outside an instance still has, and which of its
//! ports nobody gets through to.
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

/// The connections from outside in the network that all these processes are
/// in; none if they cannot be seen. Any of them may be about to end.
pub(crate) fn of_any(pids: &[u32]) -> Option<u64> {
    pids.iter().copied().find_map(of_process)
}

/// The connections from outside in the network of a process; none if they
/// cannot be seen.
fn of_process(pid: u32) -> Option<u64> {
    let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/net/{name}")).ok();
    Some(count(&[&read("tcp")?, &read("tcp6")?]))
}

/// Why nobody gets through to one of these ports of a process's network though
/// it is open; others reach an instance by IPv6 alone.
pub(crate) fn unreached(pid: u32, ports: &[u16]) -> Option<String> {
    let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/net/{name}")).ok();
    let tables = [&*read("tcp")?, &*read("tcp6")?];
    ports.iter().find_map(|port| closed(&tables, *port))
}

fn closed(tables: &[&str], port: u16) -> Option<String> {
    let wanted = format!("{port:04X}");
    let rows = tables.iter().flat_map(|table| table.lines().skip(1));
    let listens = rows
        .filter_map(row)
        .filter(|row| row.state == LISTENS && row.local.1 == wanted);
    let mut found = None;
    for row in listens {
        let at = row.local.0;
        found = Some(match (is_loopback(at), is_ipv4(at)) {
            (false, false) => return None,
            (true, _) => "listens_inside_only: it is open to programs of the instance alone",
            (false, true) => "listens_ipv4_only: it is open at 0.0.0.0",
        });
    }
    found.map(|how| format!("port {port} {how}; let it listen at [::], where others reach it"))
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
        self.remote.0 == self.local.0 || is_loopback(self.remote.0)
    }
}

/// 127.0.0.0/8, by itself and as the newer kind, and `::1`.
fn is_loopback(address: &str) -> bool {
    (is_ipv4(address) && address.ends_with("7F")) || address == "00000000000000000000000001000000"
}

fn is_ipv4(address: &str) -> bool {
    address.len() == 8 || address.starts_with("0000000000000000FFFF0000")
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
    fn an_open_port_that_ipv6_does_not_reach_is_said() {
        let at = |address: &str, port: &str| format!("{HEAD}0: {address}:{port} 0:0 0A 0\n");
        let any = "00000000000000000000000000000000";
        let (inside, mapped) = (
            "00000000000000000000000001000000",
            "0000000000000000FFFF000000000000",
        );
        let code = |four: &str, six: &str| {
            let why = closed(&[four, six], 8080)?;
            why.split_ascii_whitespace().nth(2).map(str::to_owned)
        };
        let ipv4 = Some("listens_ipv4_only:".to_owned());
        let within = Some("listens_inside_only:".to_owned());
        assert_eq!(code(&at("00000000", "1F90"), ""), ipv4);
        assert_eq!(code("", &at(mapped, "1F90")), ipv4);
        assert_eq!(code(&at("0100007F", "1F90"), ""), within);
        assert_eq!(code("", &at(inside, "1F90")), within);
        // Reached after all, of another port, or not open at all.
        assert_eq!(code(&at("00000000", "1F90"), &at(any, "1F90")), None);
        assert_eq!(code(&at("00000000", "1F91"), ""), None);
        assert_eq!(code("", ""), None);
    }

    #[test]
    fn the_kernels_tables_are_read() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        client.write_all(b"x").unwrap();
        // From this machine to itself, so it is not counted, but it is seen.
        assert!(of_process(std::process::id()).is_some());
        assert_eq!(of_process(u32::MAX), None);
        // One that has ended hides nothing that another can show.
        assert!(of_any(&[u32::MAX, std::process::id()]).is_some());
        assert_eq!(of_any(&[u32::MAX]), None);
    }
}
