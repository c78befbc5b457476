//! Units of measure after a number.

use super::view::View;

/// Symbols of units, and their names for one and for many.
const UNITS: [(&str, &str, &str); 81] = [
    ("km", "kilometer", "kilometers"),
    ("m", "meter", "meters"),
    ("cm", "centimeter", "centimeters"),
    ("mm", "millimeter", "millimeters"),
    ("μm", "micrometer", "micrometers"),
    ("nm", "nanometer", "nanometers"),
    ("mi", "mile", "miles"),
    ("ft", "foot", "feet"),
    ("yd", "yard", "yards"),
    ("kg", "kilogram", "kilograms"),
    ("g", "gram", "grams"),
    ("mg", "milligram", "milligrams"),
    ("μg", "microgram", "micrograms"),
    ("lb", "pound", "pounds"),
    ("lbs", "pound", "pounds"),
    ("oz", "ounce", "ounces"),
    ("L", "liter", "liters"),
    ("l", "liter", "liters"),
    ("ml", "milliliter", "milliliters"),
    ("mL", "milliliter", "milliliters"),
    ("μl", "microliter", "microliters"),
    ("μL", "microliter", "microliters"),
    ("cm²", "square centimeter", "square centimeters"),
    ("km²", "square kilometer", "square kilometers"),
    ("m²", "square meter", "square meters"),
    ("m³", "cubic meter", "cubic meters"),
    ("cm³", "cubic centimeter", "cubic centimeters"),
    ("km³", "cubic kilometer", "cubic kilometers"),
    ("ha", "hectare", "hectares"),
    ("s", "second", "seconds"),
    ("sec", "second", "seconds"),
    ("ms", "millisecond", "milliseconds"),
    ("μs", "microsecond", "microseconds"),
    ("ns", "nanosecond", "nanoseconds"),
    ("min", "minute", "minutes"),
    ("mins", "minute", "minutes"),
    ("h", "hour", "hours"),
    ("hr", "hour", "hours"),
    ("hrs", "hour", "hours"),
    ("kph", "kilometer per hour", "kilometers per hour"),
    ("mph", "mile per hour", "miles per hour"),
    ("kB", "kilobyte", "kilobytes"),
    ("KB", "kilobyte", "kilobytes"),
    ("MB", "megabyte", "megabytes"),
    ("GB", "gigabyte", "gigabytes"),
    ("TB", "terabyte", "terabytes"),
    ("PB", "petabyte", "petabytes"),
    ("KiB", "kibi byte", "kibi bytes"),
    ("GiB", "gibi byte", "gibi bytes"),
    ("MiB", "mebi byte", "mebi bytes"),
    ("TiB", "tebi byte", "tebi bytes"),
    ("kbps", "kilobit per second", "kilobits per second"),
    ("Mbps", "megabit per second", "megabits per second"),
    ("Gbps", "gigabit per second", "gigabits per second"),
    ("Hz", "hertz", "hertz"),
    ("kHz", "kilohertz", "kilohertz"),
    ("MHz", "megahertz", "megahertz"),
    ("GHz", "gigahertz", "gigahertz"),
    ("mW", "milliwatt", "milliwatts"),
    ("W", "watt", "watts"),
    ("kW", "kilowatt", "kilowatts"),
    ("MW", "megawatt", "megawatts"),
    ("GW", "gigawatt", "gigawatts"),
    ("kWh", "kilowatt hour", "kilowatt hours"),
    ("V", "volt", "volts"),
    ("mV", "millivolt", "millivolts"),
    ("kV", "kilovolt", "kilovolts"),
    ("mA", "milliampere", "milliamperes"),
    ("mAh", "milliampere hour", "milliampere hours"),
    ("μA", "microampere", "microamperes"),
    ("Ω", "ohm", "ohms"),
    ("kΩ", "kilo ohm", "kilo ohms"),
    ("MΩ", "mega ohm", "mega ohms"),
    ("μF", "microfarad", "microfarads"),
    ("dB", "decibel", "decibels"),
    ("kPa", "kilopascal", "kilopascals"),
    ("kJ", "kilojoule", "kilojoules"),
    ("kcal", "kilocalorie", "kilocalories"),
    ("px", "pixel", "pixels"),
    ("fps", "frame per second", "frames per second"),
    ("x", "times", "times"),
];

/// The name of the unit after a number, and its tokens.
pub fn unit(view: &View, is_one: bool) -> Option<(String, usize)> {
    let word = view.word(1)?;
    let (name, taken) = match view.adjacent(2) {
        Some(power) if power.is('²') || power.is('³') => (name(&format!("{word}{}", power.text), is_one), 2),
        Some(slash) if slash.is('/') => (rate(word, view.adjacent_word(3), is_one), 3),
        _ => (None, 1),
    };
    let (name, taken) = match name {
        Some(name) => (name, taken),
        None => (single(view, word, is_one)?, 1),
    };
    let british = || name.replace("meter", "metre").replace("liter", "litre");
    Some((if view.language.british { british() } else { name }, taken))
}

fn find(symbol: &str) -> Option<(&'static str, &'static str)> {
    UNITS.iter().find(|(other, ..)| *other == symbol).map(|(_, one, many)| (*one, *many))
}

fn name(symbol: &str, is_one: bool) -> Option<String> {
    find(symbol).map(|(one, many)| if is_one { one } else { many }.to_owned())
}

/// `km/h`, `MB/s`, `μg/mL`.
fn rate(word: &str, per: Option<&str>, is_one: bool) -> Option<String> {
    let (per, _) = find(per?)?;
    Some(format!("{} per {per}", name(word, is_one)?))
}

/// A letter after a space is rather a word or a name than a unit, except for the usual ones.
fn single(view: &View, word: &str, is_one: bool) -> Option<String> {
    let is_letter = word.chars().count() == 1;
    let is_usual = view.adjacent(1).is_some() || matches!(word, "m" | "g" | "W" | "V" | "s" | "h" | "Ω");
    if is_letter && !is_usual { None } else { name(word, is_one) }
}
