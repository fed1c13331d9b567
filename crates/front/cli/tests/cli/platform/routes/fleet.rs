//! A platform whose nodes are processes of their own, so that each can be
//! killed, replaced and emptied by itself; each in its own network if wanted.

use std::fs;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use fluffy_test_kit::wait_for;
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::Value;

use super::super::instances::LONG;
use super::super::real::Running;
use crate::site::Site;

/// A server with an edge, and no node yet.
pub(super) struct Fleet {
    pub(super) site: Site,
    pub(super) running: Running,
    pub(super) agents: Vec<Agent>,
    port: u16,
    pin: String,
}

/// A node: its agent, which may be gone, and what it leaves behind.
pub(super) struct Agent {
    pub(super) id: String,
    folder: PathBuf,
    program: PathBuf,
    network: Option<Network>,
    child: Option<Child>,
}

impl Fleet {
    /// Starts the server.
    pub(super) fn start(site: Site) -> Self {
        let mut command = site.context.command();
        command.args(["up", "--listen", "none", "--no-node", "--json"]);
        command.args(["--listen-nodes", "127.0.0.1:0"]);
        let (running, said) = Running::start(command, "\n");
        let started: Value = serde_json::from_str(&said).unwrap();
        let places = started["listening"].as_array().unwrap().iter();
        let mut places = places.filter_map(Value::as_str);
        let port = places.find_map(|it| it.strip_prefix("grpc://")?.rsplit(':').next());
        Self {
            port: port.unwrap().parse().unwrap(),
            pin: started["pin"].as_str().unwrap().to_owned(),
            site,
            running,
            agents: Vec::new(),
        }
    }

    /// One node more: in this network, or with a program of its own.
    pub(super) fn join(&mut self, network: Option<Network>) {
        let number = self.agents.len();
        let folder = self.site.context.home().join(format!("node-{number}"));
        fs::create_dir_all(&folder).unwrap();
        let token = self.site.json(0, &["nodes", "enroll-token", "create"]);
        let file = folder.join("token");
        fs::write(&file, token["data"]["secret"].as_str().unwrap()).unwrap();
        let program = match network {
            Some(_) => self.site.context.command().get_program().into(),
            None => self.program(&folder, 0),
        };
        let mut agent = Agent {
            id: String::new(),
            program,
            folder,
            network,
            child: None,
        };
        if let Some(network) = &agent.network {
            network.relay(self.port);
        }
        // Who joins must be reached, and no node is reached in its own network.
        let join = Command::new(&agent.program);
        let mut command = agent.command(join, &self.site, &["node", "enroll", "--json"]);
        command.args(["--server", &format!("127.0.0.1:{}", self.port)]);
        command
            .args(["--ca-pin", &self.pin, "--token-file"])
            .arg(&file);
        let done = command.stderr(Stdio::inherit()).output().unwrap();
        assert!(done.status.success());
        let enrolled: Value = serde_json::from_slice(&done.stdout).unwrap();
        enrolled["node_id"]
            .as_str()
            .unwrap()
            .clone_into(&mut agent.id);
        if let Some(network) = &agent.network {
            network.route(&agent.folder);
        }
        agent.run(&self.site);
        self.agents.push(agent);
        self.states("active", self.agents.len());
    }

    /// The program under another name and inode, as an upgrade leaves it.
    fn program(&self, folder: &Path, version: u32) -> PathBuf {
        let built = self.site.context.command();
        let program = folder.join(format!("fluffy-{version}"));
        fs::copy(built.get_program(), &program).unwrap();
        program
    }

    /// Waits until so many nodes are so.
    pub(super) fn states(&self, state: &str, count: usize) {
        let what = format!("{count} nodes that are {state}");
        wait_for(&what, LONG, || {
            let list = self.site.json(0, &["nodes", "list"]);
            let nodes = list["items"].as_array().unwrap().iter();
            let so = nodes.filter(|node| node["state"] == state || node["status"] == state);
            (so.count() == count).then_some(())
        })
        .unwrap();
    }

    /// Kills an agent without a word; its instances run on.
    pub(super) fn kill(&mut self, number: usize) {
        self.agents[number].kill();
    }

    /// Ends an agent and starts another version of it, which takes over.
    pub(super) fn upgrade(&mut self, number: usize, version: u32) {
        let program = self.program(&self.agents[number].folder, version);
        let agent = &mut self.agents[number];
        let mut child = agent.child.take().unwrap();
        kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        assert!(child.wait().unwrap().success());
        let before = std::mem::replace(&mut agent.program, program);
        fs::remove_file(before).unwrap();
        agent.run(&self.site);
    }

    pub(super) fn restart(&mut self, number: usize) {
        let Self { agents, site, .. } = self;
        agents[number].run(site);
    }
}

impl Agent {
    fn command(&self, mut command: Command, site: &Site, words: &[&str]) -> Command {
        let like = site.context.command();
        command.env_clear();
        let variables = like.get_envs();
        command.envs(variables.filter_map(|(name, value)| Some((name, value?))));
        command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        command.current_dir(site.context.project());
        command.args(words).arg("--data").arg(&self.folder);
        command
    }

    /// Runs its agent, until it runs instances.
    pub(super) fn run(&mut self, site: &Site) {
        let inside = match &self.network {
            Some(network) => {
                // `ip netns exec` would hide the control groups.
                let mut command = Command::new("nsenter");
                command.arg(network.entrance()).arg(&self.program);
                command
            }
            None => Command::new(&self.program),
        };
        let mut command = self.command(inside, site, &["node", "run", "--metrics", "none"]);
        command.stdout(Stdio::null()).stderr(Stdio::inherit());
        self.child = Some(command.spawn().unwrap());
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // `nsenter` becomes the agent: there is one process.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Cut off and ended, as a machine is that loses its power.
    pub(super) fn vanish(&mut self) {
        if let Some(network) = &self.network {
            network.cut();
        }
        self.lose();
    }

    /// Ends it and all that it runs.
    fn lose(&mut self) {
        self.kill();
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let pid = entry.file_name().to_str().and_then(|it| it.parse().ok());
            if let Some(pid) = pid.and_then(Pid::from_raw)
                && self.has(&entry.path())
            {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }

    /// Whether a process is one of this node's: in its network, or of one of
    /// its programs, also of one whose file is gone.
    fn has(&self, process: &Path) -> bool {
        if let Some(network) = &self.network {
            return inode(&process.join("ns/net")) == Some(network.inode);
        }
        let own = self.folder.join("fluffy-").display().to_string();
        let program = fs::read_link(process.join("exe"));
        program.is_ok_and(|it| it.display().to_string().starts_with(&own))
    }
}

/// Carries bytes one way until there are no more.
fn copy(mut from: TcpStream, mut to: TcpStream) {
    let _ = std::io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Write);
}

fn inode(path: &Path) -> Option<u64> {
    Some(fs::metadata(path).ok()?.ino())
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.lose();
    }
}

/// The node's end of them: by no other interface would it forward to instances.
const MESH: &str = "fw0a";

/// A network of its own for one node, reached by a pair of interfaces.
pub(super) struct Network {
    name: String,
    inode: u64,
    outside: String,
}

fn ip(words: &[&str]) {
    let done = Command::new("ip").args(words).output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success(), "ip {words:?}: {said}");
}

impl Network {
    /// A network that no other test has: its name comes from this process.
    pub(super) fn new(number: u8) -> Self {
        let process = std::process::id();
        let mut network = Self {
            name: format!("fw-e17-{process}-{number}"),
            inode: 0,
            outside: format!("upe{process:x}-{number}"),
        };
        ip(&["netns", "add", &network.name]);
        network.inode = inode(&network.path()).unwrap();
        let Self { name, outside, .. } = &network;
        let pair = ["link", "add", outside, "type", "veth", "peer", "name", MESH];
        ip(&[&pair[..], &["netns", name]].concat());
        ip(&["-6", "addr", "add", "fe80::1/64", "dev", outside, "nodad"]);
        ip(&["link", "set", outside, "up"]);
        let inside = |words: &[&str]| ip(&[&["-n", name.as_str()], words].concat());
        inside(&["-6", "addr", "add", "fe80::2/64", "dev", MESH, "nodad"]);
        inside(&["link", "set", "lo", "up"]);
        inside(&["link", "set", MESH, "up"]);
        inside(&[
            "-6", "route", "add", "default", "via", "fe80::1", "dev", MESH,
        ]);
        let forward = "echo 1 > /proc/sys/net/ipv6/conf/all/forwarding";
        let mut command = Command::new("nsenter");
        command.arg(network.entrance()).args(["sh", "-c", forward]);
        assert!(command.status().unwrap().success());
        network
    }

    fn path(&self) -> PathBuf {
        Path::new("/run/netns").join(&self.name)
    }

    /// Makes a port of this machine's loopback one of the network's own: a
    /// socket stays in the network that it was made in.
    fn relay(&self, port: u16) {
        let own = fs::File::open(self.path()).unwrap();
        let made = std::thread::spawn(move || {
            let kind = LinkNameSpaceType::Network;
            move_into_link_name_space(own.as_fd(), Some(kind)).unwrap();
            TcpListener::bind(("127.0.0.1", port)).unwrap()
        });
        let listener = made.join().unwrap();
        // Ends with the process of the test.
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(("127.0.0.1", port)) else {
                    continue;
                };
                let (from, to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                std::thread::spawn(move || copy(from, to));
                std::thread::spawn(move || copy(server, client));
            }
        });
    }

    fn entrance(&self) -> String {
        format!("--net={}", self.path().display())
    }

    /// Has this machine find the node's instances.
    fn route(&self, folder: &Path) {
        let kept = fs::read(folder.join("pki/identity.json")).unwrap();
        let kept: Value = serde_json::from_slice(&kept).unwrap();
        let prefix = kept["instance_prefix"].as_str().unwrap();
        ip(&[
            "-6",
            "route",
            "add",
            prefix,
            "via",
            "fe80::2",
            "dev",
            &self.outside,
        ]);
    }

    /// Cuts it off.
    fn cut(&self) {
        ip(&["link", "set", &self.outside, "down"]);
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for words in [
            &["link", "del", &self.outside][..],
            &["netns", "del", &self.name],
        ] {
            let _ = Command::new("ip").args(words).output();
        }
    }
}
