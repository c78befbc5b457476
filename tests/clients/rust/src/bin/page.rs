include!(concat!(env!("OUT_DIR"), "/page.rs"));
