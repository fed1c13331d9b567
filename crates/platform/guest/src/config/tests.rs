//! Configs that are taken, and each that is not, by its code.

use super::*;

fn sample() -> GuestConfig {
    GuestConfig::read(include_bytes!("../../tests/golden/config-v1.json")).unwrap()
}

#[test]
fn defaults_are_filled_in() {
    let least = serde_json::json!({
        "type": "config", "config_version": "v1", "instance_id": "inst_1", "generation": 1,
        "root": {"lower": {"serial": "fw-root", "fs": "erofs"}}, "command": ["./server"],
        "network": {"overlay_ipv6": "fd00::2", "gateway_ipv6": "fe80::1"},
        "secrets": {"present": false}, "exec": {"enabled": true}, "from_the_future": {"x": 1},
    });
    let config = GuestConfig::read(least.to_string().as_bytes()).unwrap();
    assert_eq!(config.workdir, "/");
    assert_eq!((config.user.uid, config.user.gid), (0, 0));
    assert_eq!(config.network.mtu, 1_420);
    assert_eq!(config.stop.signal, "TERM");
    assert_eq!(config.stop.grace_seconds, 10);
    assert_eq!(config.exec.max_sessions, 2);
    assert_eq!(config.logs, Logs::default());
    for required in [
        "config_version",
        "instance_id",
        "generation",
        "root",
        "command",
        "network",
        "secrets",
        "exec",
    ] {
        let mut config = least.clone();
        config.as_object_mut().unwrap().remove(required);
        let error = GuestConfig::read(config.to_string().as_bytes()).unwrap_err();
        assert_eq!(error.code, "config_parse_failed", "{required}");
    }
}

#[test]
fn what_a_guest_cannot_be_is_refused_with_its_code() {
    type Change = fn(&mut GuestConfig);
    let cases: Vec<(&str, Change)> = vec![
        ("unsupported_feature", |c| {
            c.config_version = "v2".to_owned()
        }),
        ("unsupported_feature", |c| {
            c.requires = vec!["teleport".to_owned()]
        }),
        ("config_invalid", |c| c.command = vec![]),
        ("config_invalid", |c| c.command = vec![String::new()]),
        ("config_invalid", |c| c.command = vec!["a".to_owned(); 257]),
        ("config_invalid", |c| c.command = vec!["a".repeat(65_537)]),
        ("config_invalid", |c| c.command = vec!["a\0b".to_owned()]),
        ("config_invalid", |c| {
            c.env_vars = (0..1_025).map(|n| (n.to_string(), String::new())).collect()
        }),
        ("config_invalid", |c| {
            c.env_vars = [("A".to_owned(), "x".repeat(131_073))].into()
        }),
        ("config_invalid", |c| {
            c.env_vars = [("A=B".to_owned(), String::new())].into()
        }),
        ("config_invalid", |c| c.workdir = "app".to_owned()),
        ("config_invalid", |c| c.network.mtu = 1_279),
        ("config_invalid", |c| c.network.mtu = 9_001),
        ("config_invalid", |c| c.network.hostname = "a b".to_owned()),
        ("config_invalid", |c| {
            c.network.search = vec!["a\nnameserver ::1".to_owned()]
        }),
        ("config_invalid", |c| c.stop.grace_seconds = 301),
        ("config_invalid", |c| c.stop.signal = "WHATEVER".to_owned()),
        ("config_invalid", |c| c.logs.max_line_bytes = 0),
        ("config_invalid", |c| c.secrets.mode = "0444".to_owned()),
        ("config_invalid", |c| {
            (c.secrets.mode, c.secrets.gid) = ("0440".to_owned(), None)
        }),
        ("config_invalid", |c| {
            c.secrets.mount_path = "/etc/passwd".to_owned()
        }),
        ("secrets_missing", |c| c.secrets.present = false),
    ];
    for (number, (code, change)) in cases.into_iter().enumerate() {
        let mut config = sample();
        change(&mut config);
        assert_eq!(config.check().unwrap_err().code, code, "case {number}");
    }
}

#[test]
fn a_config_that_cannot_be_read_does_not_show_its_values() {
    let error =
        GuestConfig::read(br#"{"type":"config","generation":"hunter2hunter2"}"#).unwrap_err();
    assert_eq!(error.code, "config_parse_failed");
    assert!(!error.to_string().contains("hunter2"), "{error}");
}

#[test]
fn signals_have_names_and_numbers() {
    for (name, number) in [
        ("TERM", 15),
        ("SIGTERM", 15),
        ("SIGRTMIN+3", 37),
        ("10", 10),
        ("SIGWINCH", 28),
    ] {
        assert_eq!(signal_number(name), Some(number), "{name}");
    }
    for name in ["", "0", "65", "-1", "RTMIN+31", "TERMINATE"] {
        assert_eq!(signal_number(name), None, "{name}");
    }
}
