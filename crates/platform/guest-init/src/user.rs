//! Who a workload runs as, where an image names it.

use std::fs::File;
use std::io::Read;

use fluffy_guest::config::User;

/// Whose processes these are, in numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    /// The user.
    pub(crate) uid: u32,
    /// The group.
    pub(crate) gid: u32,
    /// More groups.
    pub(crate) groups: Vec<u32>,
    /// Where the user is at home.
    pub(crate) home: String,
}

/// Finds out who is meant; `bad_user` if the image does not know.
pub(crate) fn find(user: &User) -> Result<Identity, String> {
    let passwd = read("/etc/passwd");
    match &user.name {
        None => Ok(Identity {
            uid: user.uid,
            gid: user.gid,
            groups: user.groups.clone(),
            home: home(&passwd, user.uid),
        }),
        Some(name) => named(name, &passwd, &read("/etc/group")),
    }
}

/// An image may have anything there, also nothing.
fn read(path: &str) -> String {
    const MOST: u64 = 1 << 20;
    let mut bytes = Vec::new();
    if let Ok(file) = File::open(path)
        && file.metadata().is_ok_and(|meta| meta.is_file())
    {
        let _ = file.take(MOST).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn rows(text: &str) -> impl Iterator<Item = Vec<&str>> {
    text.lines().map(|line| line.split(':').collect())
}

fn home(passwd: &str, uid: u32) -> String {
    rows(passwd)
        .find(|row| row.get(2).and_then(|id| id.parse().ok()) == Some(uid))
        .and_then(|row| row.get(5).map(|home| (*home).to_owned()))
        .filter(|home| home.starts_with('/'))
        .unwrap_or_else(|| if uid == 0 { "/root" } else { "/" }.to_owned())
}

fn named(name: &str, passwd: &str, group: &str) -> Result<Identity, String> {
    let (user, wanted) = match name.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (name, None),
    };
    let number: Option<u32> = user.parse().ok();
    let row = rows(passwd).find(|row| {
        let id = row.get(2).and_then(|id| id.parse().ok());
        row.first() == Some(&user) || (number.is_some() && number == id)
    });
    let field = |place: usize| {
        let row = row.as_ref()?;
        row.get(place)?.parse::<u32>().ok()
    };
    let uid = match (number, &row) {
        (Some(number), _) => number,
        (None, Some(_)) => field(2).ok_or_else(|| format!("user `{user:.64}` has no id"))?,
        (None, None) => return Err(format!("the image has no user `{user:.64}`")),
    };
    let gid = match wanted {
        None => field(3).unwrap_or(0),
        Some(wanted) => group_id(wanted, group)?,
    };
    let login = row.as_ref().and_then(|row| row.first().copied());
    let groups = match wanted {
        // An explicit group stands alone.
        Some(_) => Vec::new(),
        None => memberships(login.unwrap_or(user), group),
    };
    Ok(Identity {
        uid,
        gid,
        groups,
        home: home(passwd, uid),
    })
}

fn group_id(wanted: &str, group: &str) -> Result<u32, String> {
    if let Ok(number) = wanted.parse() {
        return Ok(number);
    }
    rows(group)
        .find(|row| row.first() == Some(&wanted))
        .and_then(|row| row.get(2)?.parse().ok())
        .ok_or_else(|| format!("the image has no group `{wanted:.64}`"))
}

fn memberships(login: &str, group: &str) -> Vec<u32> {
    rows(group)
        .filter(|row| {
            row.get(3)
                .is_some_and(|who| who.split(',').any(|one| one == login))
        })
        .filter_map(|row| row.get(2)?.parse().ok())
        .take(64)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\napp:x:1000:1001::/home/app:/bin/sh\n";
    const GROUP: &str = "root:x:0:\nweb:x:33:other,app\nstaff:x:50:app\n";

    fn ids(name: &str) -> Option<(u32, u32, Vec<u32>)> {
        let found = named(name, PASSWD, GROUP).ok()?;
        Some((found.uid, found.gid, found.groups))
    }

    #[test]
    fn names_and_numbers_as_images_write_them() {
        assert_eq!(ids("app"), Some((1_000, 1_001, vec![33, 50])));
        assert_eq!(ids("app:web"), Some((1_000, 33, vec![])));
        assert_eq!(ids("1000"), Some((1_000, 1_001, vec![33, 50])));
        assert_eq!(ids("4000:5000"), Some((4_000, 5_000, vec![])));
        assert_eq!(ids("4000"), Some((4_000, 0, vec![])));
        assert_eq!(ids("root"), Some((0, 0, vec![])));
        for unknown in ["nobody", "app:nogroup", "", ":web"] {
            assert_eq!(ids(unknown), None, "{unknown}");
        }
        assert_eq!(home(PASSWD, 1_000), "/home/app");
        assert_eq!(home("x:x:7:7::relative:", 7), "/");
    }
}
