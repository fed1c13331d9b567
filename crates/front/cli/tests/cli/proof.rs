//! `fluffy audit prove` and `check-proof`: believed elsewhere, or refused.

use std::fs;

use crate::site::Site;

/// A proof of the denied read, event 3, and the key to check it with.
fn proven() -> (Site, String, String) {
    let site = Site::prepared();
    let key = site.key();
    let proof = site.succeeds(&["audit", "prove", "3"]);
    (site, proof, key)
}

#[test]
fn a_proof_holds_where_there_is_no_ledger() {
    let (_, proof, key) = proven();
    let elsewhere = Site::empty();
    elsewhere.context.write("proof.txt", &proof).unwrap();
    let stdout = elsewhere.succeeds(&["audit", "check-proof", "proof.txt", "--key", &key]);
    assert!(stdout.starts_with("The proof holds.\n"), "{stdout}");
    assert!(stdout.contains("deny fs.read /.env"), "{stdout}");
    assert!(stdout.contains("signed by the pinned key"), "{stdout}");
    let words = ["audit", "check-proof", "proof.txt", "--key", &key];
    let value = elsewhere.json(0, &words);
    assert_eq!(
        (&value["holds"], &value["event"]["seq"]),
        (&true.into(), &3.into())
    );
    // Without a key there is nothing to check it with, and no key is made.
    let error = elsewhere.json_error(2, &["audit", "check-proof", "proof.txt"]);
    assert!(
        error["fix"][0].as_str().unwrap().contains("--key"),
        "{error}"
    );
    assert!(!elsewhere.state().exists());
}

#[test]
fn a_changed_proof_does_not_hold() {
    let (site, proof, key) = proven();
    let mut lines: Vec<&str> = proof.lines().collect();
    let path = lines
        .iter()
        .position(|line| line.starts_with("path "))
        .unwrap();
    lines.swap(path, path + 1);
    let swapped = lines.join("\n") + "\n";
    for (what, text) in [
        ("another decision", proof.replace("\"deny\"", "\"allow\"")),
        ("another position", proof.replace("\"seq\":3", "\"seq\":4")),
        (
            "another actor",
            proof.replacen("\"id\":\"agent\"", "\"id\":\"angel\"", 1),
        ),
        ("another size", proof.replace("\n7\n", "\n8\n")),
        ("hashes in another order", swapped),
    ] {
        assert_ne!(text, proof, "{what}");
        site.context.write("proof.txt", &text).unwrap();
        let error = site.json_error(7, &["audit", "check-proof", "proof.txt", "--key", &key]);
        assert_eq!(error["code"], "proof_does_not_hold", "{what}");
        site.ends(7, &["audit", "check-proof", "proof.txt"]);
    }
    site.context.write("proof.txt", &proof).unwrap();
    site.ends(0, &["audit", "check-proof", "proof.txt", "--key", &key]);
}

#[test]
fn another_key_does_not_vouch_for_it() {
    let (_, proof, key) = proven();
    let other = Site::initialised();
    other.context.write("proof.txt", &proof).unwrap();
    other.ends(7, &["audit", "check-proof", "proof.txt"]);
    other.ends(
        7,
        &["audit", "check-proof", "proof.txt", "--key", &other.key()],
    );
    other.ends(0, &["audit", "check-proof", "proof.txt", "--key", &key]);
    other.ends(
        2,
        &[
            "audit",
            "check-proof",
            "proof.txt",
            "--key",
            "ed25519:nonsense",
        ],
    );
}

#[test]
fn what_is_no_proof_is_refused() {
    let site = Site::initialised();
    for text in [
        "",
        "fluffy-ledger-proof-1\n",
        "{}\n",
        "fluffy-ledger-proof-2\nevent {}\n",
    ] {
        site.context.write("proof.txt", text).unwrap();
        let finished = site.ends(2, &["audit", "check-proof", "proof.txt"]);
        assert!(
            finished.stderr.contains("is not a proof"),
            "{}",
            finished.stderr
        );
    }
    site.ends(4, &["audit", "check-proof", "missing.txt"]);
    let large = fs::File::create(site.project_file("large.txt")).unwrap();
    large.set_len(3 << 20).unwrap();
    site.ends(2, &["audit", "check-proof", "large.txt"]);
}

#[test]
fn a_proof_is_written_where_it_is_wanted() {
    let (site, proof, _) = proven();
    let stdout = site.succeeds(&["audit", "prove", "3", "-o", "proof.txt"]);
    assert!(
        stdout.starts_with("wrote proof.txt: event 3 among 7 events"),
        "{stdout}"
    );
    assert_eq!(
        fs::read_to_string(site.project_file("proof.txt")).unwrap(),
        proof
    );
    let value = site.json(0, &["audit", "prove", "3"]);
    assert_eq!(value["text"], proof);
    site.json_error(4, &["audit", "prove", "99"]);
    site.json_error(4, &["audit", "prove", "0"]);
    site.ends(1, &["audit", "prove", "3", "-o", "missing/proof.txt"]);
}

#[test]
fn proving_makes_no_ledger() {
    let site = Site::empty();
    site.ends(4, &["audit", "prove", "1"]);
    assert!(!site.database().exists());
}
