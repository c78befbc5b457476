//! Wall-clock time, monotonic time and random bytes.
//!
//! Nothing below the composition root reads a clock or the OS's generator itself. It uses a [`ClockRng`], so that tests
//! control both.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Source of wall-clock time, monotonic time and random bytes.
pub trait ClockRng: Send + Sync {
    /// The wall clock.
    fn now(&self) -> Timestamp;

    /// Time since an arbitrary start; never goes back.
    fn uptime(&self) -> Duration;

    /// Fills `bytes` from a cryptographically secure generator.
    fn fill(&self, bytes: &mut [u8]);

    /// If true, a shared store replaces the wall clock by its database's clock. A test that sets the time returns
    /// false.
    fn follows_database(&self) -> bool {
        true
    }
}

/// A point in time, in milliseconds since 1970-01-01T00:00:00Z.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

/// 9999-12-31T23:59:59.999Z, the last moment that RFC 3339 can write.
const LAST_MILLISECOND: i64 = 253_402_300_799_999;

impl Timestamp {
    /// 1970-01-01T00:00:00Z.
    pub const ORIGIN: Timestamp = Timestamp(0);

    /// The last moment that RFC 3339 can write.
    pub const LAST: Timestamp = Timestamp(LAST_MILLISECOND);

    /// Clamped to the years 1970 to 9999, which RFC 3339 can write.
    pub fn from_millis(millis: i64) -> Self {
        Self(millis.clamp(0, LAST_MILLISECOND))
    }

    pub fn as_millis(self) -> i64 {
        self.0
    }

    /// Whole seconds since 1970, as in OpenAI's `created` fields.
    pub fn as_seconds(self) -> i64 {
        self.0 / 1000
    }

    /// The time from this moment to `later`; zero if `later` is earlier.
    pub fn until(self, later: Timestamp) -> Duration {
        Duration::from_millis(u64::try_from(later.0.saturating_sub(self.0)).unwrap_or(0))
    }

    /// The first moment of this calendar month, in UTC.
    #[must_use]
    pub fn month_start(self) -> Self {
        self.month(0)
    }

    /// The first moment of the next calendar month, in UTC.
    #[must_use]
    pub fn next_month(self) -> Self {
        self.month(1)
    }

    fn month(self, months: i64) -> Self {
        let start = jiff::Timestamp::from_millisecond(self.0).ok().and_then(|moment| {
            let first = moment.to_zoned(jiff::tz::TimeZone::UTC).first_of_month().ok()?.start_of_day().ok()?;
            first.checked_add(jiff::Span::new().months(months)).ok()
        });
        start.map_or(Self(LAST_MILLISECOND), |start| Self::from_millis(start.timestamp().as_millisecond()))
    }

    /// This moment plus `wait`; saturates at [`Timestamp::LAST`].
    #[must_use]
    pub fn after(self, wait: Duration) -> Self {
        let millis = i64::try_from(wait.as_millis()).unwrap_or(i64::MAX);
        Self::from_millis(self.0.saturating_add(millis))
    }
}

/// The text was not an RFC 3339 time with an offset, within the years 1970 to 9999.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("not an RFC 3339 time with an offset")]
pub struct BadTime;

impl FromStr for Timestamp {
    type Err = BadTime;

    fn from_str(text: &str) -> Result<Self, BadTime> {
        let parsed: jiff::Timestamp = text.parse().map_err(|_| BadTime)?;
        let millis = parsed.as_millisecond();
        (0..=LAST_MILLISECOND).contains(&millis).then_some(Self(millis)).ok_or(BadTime)
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_millisecond(self.0) {
            Ok(moment) => write!(f, "{moment:.3}"),
            Err(_) => write!(f, "{}ms", self.0),
        }
    }
}

/// As text for clients, as milliseconds in binary formats.
impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match serializer.is_human_readable() {
            true => serializer.collect_str(self),
            false => self.as_millis().serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if !deserializer.is_human_readable() {
            return i64::deserialize(deserializer).map(Self::from_millis);
        }
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(|BadTime| {
            serde::de::Error::custom("must be an RFC 3339 time with an offset, such as 2027-01-31T12:00:00Z")
        })
    }
}

/// A clock that stands still and random bytes that are all zero, for tests.
#[derive(Clone, Copy, Debug)]
pub struct StoppedClock;

impl ClockRng for StoppedClock {
    fn now(&self) -> Timestamp {
        Timestamp::ORIGIN
    }

    fn uptime(&self) -> Duration {
        Duration::ZERO
    }

    fn fill(&self, _: &mut [u8]) {}
}

#[cfg(test)]
mod tests {
    use super::Timestamp;

    #[test]
    fn a_time_is_written_as_it_is_read() {
        let moment: Timestamp = "2026-11-21T11:00:00.250+01:00".parse().unwrap();
        assert_eq!(moment.to_string(), "2026-11-21T10:00:00.250Z");
        assert_eq!(moment.to_string().parse(), Ok(moment));
    }

    #[test]
    fn months_begin_and_end_in_utc() {
        let moment: Timestamp = "2028-02-29T23:59:59.999Z".parse().unwrap();
        assert_eq!(moment.month_start().to_string(), "2028-02-01T00:00:00.000Z");
        assert_eq!(moment.next_month().to_string(), "2028-03-01T00:00:00.000Z");
        assert_eq!(
            "2026-12-05T00:00:00Z".parse::<Timestamp>().unwrap().next_month().to_string(),
            "2027-01-01T00:00:00.000Z"
        );
    }

    #[test]
    fn a_time_without_an_offset_is_refused() {
        for text in ["2026-11-21T11:00:00", "2026-11-21", "1e9", "", "1969-12-31T23:59:59Z"] {
            assert!(text.parse::<Timestamp>().is_err(), "{text}");
        }
    }
}
