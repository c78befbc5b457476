//! `outpost sign-in`: asks the running server for a link that signs a browser in.

use std::io::{ErrorKind, IsTerminal, Write, stdout};

use super::output::{Outcome, failure};
use crate::config::DataPaths;
use crate::control_socket::{self, Reply, Request};

pub fn run(paths: &DataPaths, out: &mut dyn Write) -> Outcome {
    let data = paths.data.display();
    let reply = control_socket::send(&paths.data, &Request::SignIn).map_err(|cause| match cause.kind() {
        ErrorKind::PermissionDenied => {
            format!("the data folder {data} belongs to another user; run this command as that user, for example with sudo -u")
        }
        _ => format!("the server cannot be reached through the data folder {data}: {cause}"),
    })?;
    match reply {
        Some(Reply::SignInLink { url }) => {
            writeln!(out, "{url}")?;
            if stdout().is_terminal() {
                writeln!(out, "The link signs one browser in, once, within 10 minutes.")?;
            }
            Ok(())
        }
        Some(other) => Err(failure(other)),
        None => Err(format!(
            "no server uses the data folder {data}; start it with 'outpost serve', or name its folder with --data"
        )
        .into()),
    }
}
