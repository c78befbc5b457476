//! IP addresses and CIDR blocks, and the prefix that per-address limits treat as one client.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// `10.0.0.1`, `10.0.0.0/8`, `2001:db8::/32`. An IPv4-mapped IPv6 address is its IPv4 address.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    prefix: u8,
}

/// The unit of limits per address: an IPv4 address, or an IPv6 /64, within which a host chooses its address freely.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClientPrefix {
    V4(u32),
    V6(u64),
}

impl ClientPrefix {
    pub fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self::V4(address.into()),
            IpAddr::V6(address) => Self::V6((u128::from(address) >> 64) as u64),
        }
    }
}

/// The text was neither an address nor a block of addresses.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("write an IP address such as 10.0.0.1, or a block such as 10.0.0.0/8 or fd00::/8")]
pub struct BadNetwork;

impl Network {
    /// Whether `address` is in the block.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let differing = u32::from(own) ^ u32::from(other);
                differing.leading_zeros() >= u32::from(self.prefix)
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                let differing = u128::from(own) ^ u128::from(other);
                differing.leading_zeros() >= u32::from(self.prefix)
            }
            _ => false,
        }
    }
}

impl FromStr for Network {
    type Err = BadNetwork;

    /// Bits beyond the prefix are ignored.
    fn from_str(text: &str) -> Result<Self, BadNetwork> {
        let (address, prefix) = text.split_once('/').map_or((text, None), |(address, prefix)| (address, Some(prefix)));
        let written: IpAddr = address.parse().map_err(|_| BadNetwork)?;
        let address = written.to_canonical();
        let bits = |address: IpAddr| if address.is_ipv4() { 32 } else { 128 };
        let prefix = match prefix {
            None => bits(address),
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                // `::ffff:10.0.0.0/104` is `10.0.0.0/8`.
                let mapped = bits(written) - bits(address);
                digits.parse::<u8>().ok().and_then(|prefix| prefix.checked_sub(mapped)).ok_or(BadNetwork)?
            }
            Some(_) => return Err(BadNetwork),
        };
        if prefix <= bits(address) { Ok(Self { address, prefix }) } else { Err(BadNetwork) }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::Network;

    #[test]
    fn a_block_contains_the_addresses_with_its_prefix() {
        let cases = [
            ("10.0.0.1", "10.0.0.1", true),
            ("10.0.0.1", "10.0.0.2", false),
            ("10.1.2.3/8", "10.255.0.1", true),
            ("10.0.0.0/8", "11.0.0.0", false),
            ("10.0.0.0/8", "::ffff:10.9.9.9", true),
            ("::ffff:10.0.0.0/104", "10.9.9.9", true),
            ("::ffff:10.0.0.1", "10.0.0.1", true),
            ("0.0.0.0/0", "203.0.113.9", true),
            ("0.0.0.0/0", "::1", false),
            ("::/0", "::1", true),
            ("::/0", "127.0.0.1", false),
            ("2001:db8::/33", "2001:db8:7fff::1", true),
            ("2001:db8::/33", "2001:db8:8000::1", false),
        ];
        for (network, address, inside) in cases {
            let found = network.parse::<Network>().unwrap().contains(address.parse().unwrap());
            assert_eq!(found, inside, "{address} in {network}");
        }
    }

    #[test]
    fn what_is_no_block_is_refused() {
        for bad in
            ["", "10.0.0", "10.0.0.0/33", "10.0.0.0/", "10.0.0.0/+8", "::/129", "::ffff:10.0.0.0/8", "proxy", "a/8"]
        {
            assert!(bad.parse::<Network>().is_err(), "{bad}");
        }
    }
}
