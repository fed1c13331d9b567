//! What an instance's packets may do on the machine that runs it: answer.
//!
//! One table of the kernel, `inet fluffy`, is about every interface whose name
//! begins as ours do, so it is the same for all instances and nodes of a
//! machine and holds no address. It is replaced whole or not at all, and read
//! back afterwards. It never lets a packet through that another table drops,
//! and never touches one that is no instance's. Without it no instance starts.

use std::io;
use std::os::fd::AsFd;

use crate::call;
use crate::netlink::{CREATE, Message, Netlink, agrees, attributes, value};

/// How the interfaces of instances begin, and nobody else's.
pub const PREFIX: &str = "fwt-";
/// The interfaces by which nodes and edges reach each other.
const MESH: [&str; 2] = ["fw0a", "fw0b"];
/// The table.
const TABLE: &str = "fluffy";
/// How often what is there is read again when it changed meanwhile.
const TRIES: usize = 16;

/// IPv4 and IPv6.
const INET: u8 = 1;
const SUBSYSTEM: u16 = 10;
const BEGIN: u16 = 16;
const END: u16 = 17;
const NEW_TABLE: u16 = SUBSYSTEM << 8;
const GET_TABLE: u16 = NEW_TABLE + 1;
const DELETE_TABLE: u16 = NEW_TABLE + 2;
const NEW_CHAIN: u16 = NEW_TABLE + 3;
const GET_CHAIN: u16 = NEW_TABLE + 4;
const NEW_RULE: u16 = NEW_TABLE + 6;
const GET_RULE: u16 = NEW_TABLE + 7;
/// At the end of its chain.
const APPEND: u16 = 0x800;

const TABLE_NAME: u16 = 1;
const TABLE_FLAGS: u16 = 2;
const CHAIN_TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;
const CHAIN_HOOK: u16 = 4;
const CHAIN_POLICY: u16 = 5;
const CHAIN_TYPE: u16 = 7;
const HOOK_NUMBER: u16 = 1;
const HOOK_PRIORITY: u16 = 2;
const RULE_TABLE: u16 = 1;
const RULE_CHAIN: u16 = 2;
const RULE_EXPRESSIONS: u16 = 4;
const ELEMENT: u16 = 1;
const EXPRESSION_NAME: u16 = 1;
const EXPRESSION_DATA: u16 = 2;

const DROP: u32 = 0;
const ACCEPT: u32 = 1;

/// A place in the kernel where packets are looked at: name, number, order.
type Chain = (&'static str, u32, i32);

/// Before anything is decided about a packet.
const SPOOFED: Chain = ("spoofed", 0, -300);
/// On its way to the machine itself.
const HOST: Chain = ("host", 1, -10);
/// On its way through.
const THROUGH: Chain = ("through", 2, -10);

/// How many packets of instances, or to them, were dropped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Dropped {
    /// With an address that is not the instance's.
    pub spoofed: u64,
    /// To the machine itself.
    pub host: u64,
    /// To anybody else, or from anybody through the machine.
    pub through: u64,
}

/// What was found of the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// They are as they should be.
    Right,
    /// They were missing, or others; now they are right.
    Wrong,
}

/// Fails for an interface that the rules are not about.
pub(crate) fn covers(interface: &str) -> io::Result<()> {
    match interface.starts_with(PREFIX) {
        true => Ok(()),
        false => Err(io::Error::other(format!(
            "no rule is about an interface named `{interface}`"
        ))),
    }
}

/// Puts the rules in force, unless they are; says what was found. They are
/// right when this returns.
///
/// # Errors
/// When the kernel refuses them, or they are still not there afterwards.
pub fn ensure() -> io::Result<Found> {
    let mut socket = Netlink::filtering()?;
    if is_right(&mut socket)? {
        return Ok(Found::Right);
    }
    for _ in 0..TRIES {
        socket
            .together(&transaction())
            .map_err(|error| refused("put the rules of instances in force", &error))?;
        if is_right(&mut socket)? {
            return Ok(Found::Wrong);
        }
    }
    Err(io::Error::other(
        "somebody keeps changing the table `inet fluffy`",
    ))
}

/// Whether the rules are in force in the network that a process is in. Changes
/// nothing.
///
/// # Errors
/// When that cannot be found out.
pub fn in_force_at(pid: u32) -> io::Result<bool> {
    let network = std::fs::File::open(format!("/proc/{pid}/ns/net"))?;
    // A thread of its own, which goes with the network it moved to.
    let looked = std::thread::spawn(move || {
        let kind = rustix::thread::LinkNameSpaceType::Network;
        rustix::thread::move_into_link_name_space(network.as_fd(), Some(kind))?;
        is_right(&mut Netlink::filtering()?)
    });
    looked
        .join()
        .unwrap_or_else(|_| Err(io::Error::other("the thread ended")))
}

/// How many packets were dropped since the rules were put in force.
///
/// # Errors
/// When there are no rules, or the kernel does not say.
pub fn dropped() -> io::Result<Dropped> {
    let mut socket = Netlink::filtering()?;
    let mut dropped = Dropped::default();
    for rule in list(&mut socket, GET_RULE)? {
        let Some(packets) = packets(&rule) else {
            continue;
        };
        match name(&rule, RULE_CHAIN).as_deref() {
            Some("spoofed") => dropped.spoofed += packets,
            Some("host") => dropped.host += packets,
            Some("through") => dropped.through += packets,
            _ => {}
        }
    }
    Ok(dropped)
}

/// Whether this kernel takes the rules, found out in a network of its own that
/// nobody sees.
///
/// # Errors
/// What the kernel said.
pub fn probe() -> io::Result<()> {
    let tried = std::thread::spawn(|| {
        call::own_network()?;
        ensure().map(drop)
    });
    tried
        .join()
        .unwrap_or_else(|_| Err(io::Error::other("the thread ended")))
}

fn refused(step: &str, error: &io::Error) -> io::Error {
    io::Error::new(
        error.kind(),
        format!("cannot {step} (is the kernel's module nf_tables there?): {error}"),
    )
}

fn is_right(socket: &mut Netlink) -> io::Result<bool> {
    let table = match socket.talk(&named(GET_TABLE), 0) {
        Ok(answer) => answer,
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(false),
        Err(error) => return Err(refused("read the rules of instances", &error)),
    };
    let chains = list(socket, GET_CHAIN)?;
    let rules = list(socket, GET_RULE)?;
    let wanted = ruleset();
    let of = |kind: u16| {
        let same = move |message: &&Message| message.kind == kind;
        wanted.iter().filter(same)
    };
    let has = |chain: &Message| chains.iter().any(|it| agrees(body(&chain.content), it));
    let same = |(rule, found): (&Message, &Vec<u8>)| agrees(body(&rule.content), found);
    // Chains come in any order, the rules of one as they are gone through.
    let by_chain = |chain: &str| {
        let here = |content: &[u8]| name(content, RULE_CHAIN).as_deref() == Some(chain);
        let wanted: Vec<&Message> = of(NEW_RULE).filter(|it| here(body(&it.content))).collect();
        let found: Vec<&Vec<u8>> = rules.iter().filter(|it| here(it)).collect();
        wanted.len() == found.len() && wanted.into_iter().zip(found).all(same)
    };
    Ok(
        of(NEW_TABLE).all(|it| agrees(body(&it.content), body(&table)))
            && of(NEW_CHAIN).count() == chains.len()
            && of(NEW_CHAIN).all(has)
            && of(NEW_RULE).count() == rules.len()
            && [SPOOFED, HOST, THROUGH].iter().all(|it| by_chain(it.0)),
    )
}

/// The attributes of all chains or rules of the table.
fn list(socket: &mut Netlink, kind: u16) -> io::Result<Vec<Vec<u8>>> {
    for _ in 0..TRIES {
        let listed = socket.list(&head(kind, 0));
        let Some(all) = listed.map_err(|error| refused("read the rules of instances", &error))?
        else {
            continue;
        };
        let contents = all.into_iter().map(|answer| body(&answer.content).to_vec());
        // Both have the table's name as their first attribute.
        let ours = |content: &Vec<u8>| name(content, RULE_TABLE).as_deref() == Some(TABLE);
        return Ok(contents.filter(ours).collect());
    }
    Err(io::Error::other("the rules keep changing"))
}

fn name(content: &[u8], kind: u16) -> Option<String> {
    let bytes = value(content, &[kind])?;
    let text = bytes.strip_suffix(&[0]).unwrap_or(&bytes);
    Some(String::from_utf8_lossy(text).into_owned())
}

/// What a rule counted, if it counts.
fn packets(rule: &[u8]) -> Option<u64> {
    const PACKETS: u16 = 2;
    let expressions = value(rule, &[RULE_EXPRESSIONS])?;
    attributes(&expressions).iter().find_map(|(_, one)| {
        let is_counter = name(one, EXPRESSION_NAME).as_deref() == Some("counter");
        let bytes = value(one, &[EXPRESSION_DATA, PACKETS]).filter(|_| is_counter)?;
        Some(u64::from_be_bytes(*bytes.first_chunk::<8>()?))
    })
}

/// What follows the `struct nfgenmsg`.
fn body(content: &[u8]) -> &[u8] {
    content.get(4..).unwrap_or_default()
}

/// A message with a `struct nfgenmsg` for both protocols.
fn head(kind: u16, flags: u16) -> Message {
    let mut message = Message::new(kind, flags);
    message.content.extend([INET, 0, 0, 0]);
    message
}

fn named(kind: u16) -> Message {
    let mut message = head(kind, 0);
    message.text(TABLE_NAME, TABLE);
    message
}

/// The table in the place of whatever is there under its name.
fn transaction() -> Vec<Message> {
    let bound = |kind| {
        let mut message = Message::new(kind, 0);
        message.content.extend([0, 0]);
        message.content.extend(SUBSYSTEM.to_be_bytes());
        message
    };
    let mut before = named(NEW_TABLE);
    before.flags = CREATE;
    let mut all = vec![bound(BEGIN), before, named(DELETE_TABLE)];
    all.extend(ruleset());
    all.push(bound(END));
    all
}

/// All that is to be there.
fn ruleset() -> Vec<Message> {
    let mut table = named(NEW_TABLE);
    table.flags = CREATE;
    table.bytes(TABLE_FLAGS, &0_u32.to_be_bytes());
    let mut all = vec![table];
    all.extend([SPOOFED, HOST, THROUGH].map(chain));
    // An address that answers would not go to: nobody's, or somebody else's.
    all.push(rule(SPOOFED, &[of_instance(), no_way_back(), dropping()]));
    for chain in [HOST, THROUGH] {
        // Answers to what the host, or somebody through it, began.
        for state in [ESTABLISHED, RELATED] {
            all.push(rule(chain, &[of_instance(), tracked(state), accepting()]));
        }
    }
    // That a packet was too big or lost, and echoes, tell nobody anything.
    for (from, to) in [(1, 4), (128, 129)] {
        all.push(rule(HOST, &[of_instance(), icmp(from, to), accepting()]));
    }
    for chain in [HOST, THROUGH] {
        all.push(rule(chain, &[of_instance(), dropping()]));
    }
    // Who forwards for others forwards to no instance, but for edges.
    for state in [ESTABLISHED, RELATED] {
        all.push(rule(THROUGH, &[to_instance(), tracked(state), accepting()]));
    }
    for mesh in MESH {
        all.push(rule(THROUGH, &[to_instance(), by(mesh), accepting()]));
    }
    all.push(rule(THROUGH, &[to_instance(), dropping()]));
    all
}

fn chain((name, hook, priority): Chain) -> Message {
    let mut message = head(NEW_CHAIN, CREATE);
    message.text(CHAIN_TABLE, TABLE);
    message.text(CHAIN_NAME, name);
    message.nested(CHAIN_HOOK, |inner| {
        inner.bytes(HOOK_NUMBER, &hook.to_be_bytes());
        inner.bytes(HOOK_PRIORITY, &priority.to_be_bytes());
    });
    message.bytes(CHAIN_POLICY, &ACCEPT.to_be_bytes());
    message.text(CHAIN_TYPE, "filter");
    message
}

/// Some expressions of a rule, each a name and its attributes.
type Part = Vec<(&'static str, Message)>;

fn rule((chain, ..): Chain, parts: &[Part]) -> Message {
    let mut message = head(NEW_RULE, CREATE | APPEND);
    message.text(RULE_TABLE, TABLE);
    message.text(RULE_CHAIN, chain);
    message.nested(RULE_EXPRESSIONS, |list| {
        for (name, data) in parts.iter().flatten() {
            list.nested(ELEMENT, |one| {
                one.text(EXPRESSION_NAME, name);
                if !data.content.is_empty() {
                    one.nested(EXPRESSION_DATA, |inner| {
                        inner.content.extend_from_slice(&data.content);
                    });
                }
            });
        }
    });
    message
}

fn numbers(values: &[(u16, u32)]) -> Message {
    let mut message = Message::new(0, 0);
    for (kind, value) in values {
        message.bytes(*kind, &value.to_be_bytes());
    }
    message
}

/// The first register, into which a value is loaded to be compared.
const REGISTER: u32 = 1;
const EQUAL: u32 = 0;
const AT_MOST: u32 = 3;
const AT_LEAST: u32 = 5;

fn compare(how: u32, with: &[u8]) -> (&'static str, Message) {
    const DATA: u16 = 3;
    const VALUE: u16 = 1;
    let mut message = numbers(&[(1, REGISTER), (2, how)]);
    message.nested(DATA, |inner| inner.bytes(VALUE, with));
    ("cmp", message)
}

fn meta(key: u32) -> (&'static str, Message) {
    ("meta", numbers(&[(1, REGISTER), (2, key)]))
}

const INPUT_NAME: u32 = 6;
const OUTPUT_NAME: u32 = 7;

/// Came in by an interface whose name begins as ours do.
fn of_instance() -> Part {
    vec![meta(INPUT_NAME), compare(EQUAL, PREFIX.as_bytes())]
}

/// Goes out by an interface whose name begins as ours do.
fn to_instance() -> Part {
    vec![meta(OUTPUT_NAME), compare(EQUAL, PREFIX.as_bytes())]
}

/// Came in by the interface of this name.
fn by(interface: &str) -> Part {
    // With what follows a name, so that no longer one is meant.
    let mut whole = [0; 16];
    for (to, from) in whole.iter_mut().zip(interface.bytes()) {
        *to = from;
    }
    vec![meta(INPUT_NAME), compare(EQUAL, &whole)]
}

/// There is no way to where it says it comes from by where it came in.
fn no_way_back() -> Part {
    const OUTPUT_INTERFACE: u32 = 1;
    const SOURCE_AND_INPUT: u32 = 1 | 8;
    let found = numbers(&[(1, REGISTER), (2, OUTPUT_INTERFACE), (3, SOURCE_AND_INPUT)]);
    vec![("fib", found), compare(EQUAL, &0_u32.to_ne_bytes())]
}

const ESTABLISHED: u32 = 2;
const RELATED: u32 = 4;

fn tracked(state: u32) -> Part {
    const STATE: u32 = 0;
    let found = numbers(&[(1, REGISTER), (2, STATE)]);
    vec![("ct", found), compare(EQUAL, &state.to_ne_bytes())]
}

/// Messages about packets, by their kind.
fn icmp(from: u8, to: u8) -> Part {
    const PROTOCOL: u32 = 16;
    const ICMP6: u8 = 58;
    const TRANSPORT: u32 = 2;
    let kind = numbers(&[(1, REGISTER), (2, TRANSPORT), (3, 0), (4, 1)]);
    vec![
        meta(PROTOCOL),
        compare(EQUAL, &[ICMP6]),
        ("payload", kind),
        compare(AT_LEAST, &[from]),
        compare(AT_MOST, &[to]),
    ]
}

fn dropping() -> Part {
    vec![("counter", Message::new(0, 0)), verdict(DROP)]
}

fn accepting() -> Part {
    vec![verdict(ACCEPT)]
}

fn verdict(code: u32) -> (&'static str, Message) {
    const DATA: u16 = 2;
    const VERDICT: u16 = 2;
    const CODE: u16 = 1;
    // The register of verdicts is number nought.
    let mut message = numbers(&[(1, 0)]);
    message.nested(DATA, |data| {
        data.nested(VERDICT, |inner| inner.bytes(CODE, &code.to_be_bytes()));
    });
    ("immediate", message)
}
