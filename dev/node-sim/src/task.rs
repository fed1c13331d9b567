//! A task that ends with who holds it.

/// Ends the task when it goes.
#[derive(Debug)]
pub(crate) struct Task(tokio::task::JoinHandle<()>);

impl Task {
    /// Runs something until this is dropped.
    pub(crate) fn of(work: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(work))
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}
