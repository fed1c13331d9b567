//! What is configured counts for the next session, also in a running kernel.

use fluffy_model_server::{Format, Reply};
use serde_json::json;

use super::family::{Role, the};
use super::languages::JAVASCRIPT;
use super::stage::Stage;

#[test]
fn what_is_configured_now_counts_for_the_next_session() {
    let mut stage = Stage::new(Format::Chat, JAVASCRIPT.files);
    stage.site.context.set("FLUFFY_KERNEL_LINGER", "15");
    let play = |stage: &Stage| {
        let reads = || Reply::call("fs.read", json!({"path": JAVASCRIPT.source}));
        stage.play(vec![reads(), reads()]).ended()["result"].clone()
    };
    assert_eq!(play(&stage), "unfinished");
    let kernel = the(Role::Kernel, &stage).unwrap();

    let folder = stage.site.context.home().join(".config/fluffy");
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("config.toml");
    std::fs::write(&file, "[budget]\nturns = 1\n").unwrap();
    assert_eq!(play(&stage), "budget", "the file is not read again");
    std::fs::remove_file(&file).unwrap();
    assert_eq!(play(&stage), "unfinished");
    stage.site.context.set("FLUFFY_BUDGET_TURNS", "1");
    assert_eq!(play(&stage), "budget", "the variable is not seen");
    assert_eq!(
        the(Role::Kernel, &stage),
        Some(kernel),
        "it was another one"
    );
    stage.ends();
}
