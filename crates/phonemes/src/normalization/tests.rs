//! Texts and the words that are spoken for them.

use super::super::cleaning::clean;
use super::super::token::tokenize;
use super::*;

fn words(text: &str, british: bool) -> String {
    let mut spoken = String::new();
    for token in normalize(&tokenize(&clean(text)), british) {
        if token.space_before && !spoken.is_empty() {
            spoken.push(' ');
        }
        let text = if token.kind == Kind::Phonemes { "point" } else { &token.text };
        spoken.push_str(text);
    }
    spoken.trim().to_owned()
}

#[track_caller]
fn check(cases: &[(&str, &str)]) {
    let spoken = cases.iter().map(|(text, expected)| (*text, words(text, false), *expected));
    let wrong: Vec<_> = spoken.filter(|(_, actual, expected)| actual != expected).collect();
    assert!(wrong.is_empty(), "text, actual words, expected words: {wrong:#?}");
}

#[test]
fn numbers_are_read() {
    check(&[
        ("3 apples and 1,234 pears", "three apples and one thousand two hundred thirty four pears"),
        ("1,000,000 people", "one million people"),
        ("3.14 and .5", "three point one four and point five"),
        ("-5 degrees, x = -3.2", "minus five degrees, x equals minus three point two"),
        (
            "in 1999, 2024, 1905, 2000 and 2005",
            "in nineteen ninety nine, twenty twenty four, nineteen oh five, two thousand and two thousand five",
        ),
        ("the 1990s and the 90s", "the nineteen nineties and the nineties"),
        ("1st, 2nd, 3rd and 21st", "first, second, third and twenty first"),
        ("007 and 3000000000", "zero zero seven and three billion"),
        (
            "12345678901234567890",
            "one two three four five six seven eight nine zero one two three four five six seven eight nine zero",
        ),
        (
            "Call 555-0123 or +1 415-555-0199.",
            "Call five five five, zero one two three or plus one four one five, five five five, zero one nine nine.",
        ),
        ("version 1.2.3", "version one point two point three"),
        ("1/2, 3/4 and 2/3 of it", "one half, three quarters and two thirds of it"),
        ("1½ cups", "one and one half cups"),
        (
            "5–10 km, 1990-1995, 20-30%",
            "five to ten kilometers, nineteen ninety to nineteen ninety five, twenty to thirty percent",
        ),
        ("a 3:1 ratio", "a three to one ratio"),
        ("1920x1080 px", "one thousand nine hundred twenty by one thousand eighty pixels"),
        ("MP3 and 4K", "MP three and four K"),
    ]);
}

#[test]
fn amounts_are_read_with_their_units() {
    check(&[
        ("$5, $1 and $3.50", "five dollars, one dollar and three dollars and fifty cents"),
        ("£20.01, €0.99", "twenty pounds and one penny, ninety nine cents"),
        ("$1.2 million or $5k", "one point two million dollars or five thousand dollars"),
        ("-$5 and 20 € and 7 USD", "minus five dollars and twenty euros and seven dollars"),
        ("50% and 0.5 %", "fifty percent and zero point five percent"),
        ("20°C, 70 °F, 90°", "twenty degrees Celsius, seventy degrees Fahrenheit, ninety degrees"),
        (
            "5 km, 1 kg, 16GB, 3.5 GHz, 100 MB/s, 60 mph",
            "five kilometers, one kilogram, sixteen gigabytes, three point five gigahertz, one hundred megabytes per second, sixty miles per hour",
        ),
        ("5 m² in 10 min", "five square meters in ten minutes"),
    ]);
    assert_eq!(words("5 km and 105 l", true), "five kilometres and one hundred and five l");
}

#[test]
fn dates_and_times_are_read() {
    check(&[
        ("at 3:30 pm, 15:00, 7:05 a.m. and 5pm", "at three thirty PM, fifteen hundred, seven oh five AM and five PM"),
        ("2024-05-01", "May first, twenty twenty four"),
        ("May 1st, 2024 and Jan. 5", "May first, twenty twenty four and January fifth"),
        ("1/5/2024", "January fifth, twenty twenty four"),
        ("on 5 May 2024", "on the fifth of May twenty twenty four"),
        ("May 2024", "May twenty twenty four"),
        ("1:02:03", "one hour two minutes and three seconds"),
    ]);
    assert_eq!(words("1/5/2024", true), "the first of May, twenty twenty four");
}

#[test]
fn abbreviations_are_read() {
    check(&[
        ("Dr. Smith met Mr. Jones and Mrs. Brown.", "Doctor Smith met Mister Jones and Missus Brown."),
        ("He lives on Elm St. in St. Louis.", "He lives on Elm Street in Saint Louis."),
        ("the U.S. Army. In the U.S. The end.", "the US Army. In the US. The end."),
        ("e.g. this, i.e. that, etc.", "for example this, that is that, etcetera."),
        ("J. R. Smith vs. No. 5", "J R Smith versus number five"),
        ("Henry VIII, World War II and Chapter IV", "Henry the eighth, World War two and Chapter four"),
        ("It is a mix. I like it.", "It is a mix. I like it."),
        ("Plan B and vitamin C.", "Plan B and vitamin C."),
        ("A cat. A dog.", "A cat. A dog."),
    ]);
}

#[test]
fn addresses_and_symbols_are_read() {
    check(&[
        ("Visit https://www.example.com/docs.", "Visit www dot example dot com slash docs."),
        ("Mail jane.doe@example.org now.", "Mail jane dot doe at example dot org now."),
        ("See example.com, please.", "See example dot com, please."),
        ("salt & pepper, C#, #1 and #topic", "salt and pepper, C sharp, number one and hashtag topic"),
        (
            "2 + 2 = 4, 5 * 3, 4 - 1, 3 < 5",
            "two plus two equals four, five times three, four minus one, three is less than five",
        ),
        ("either/or", "either or"),
        ("see config.yaml, A B C", "see config dot yaml, A B C"),
        ("this - that", "this, that"),
    ]);
}

#[test]
fn markup_and_unusual_characters_disappear() {
    check(&[
        ("**Bold** and *slanted* `code`", "Bold and slanted code"),
        ("# Title\ntext", "Title text"),
        ("[the site](http://x.y) and ![image](a.png)", "the site and image"),
        ("It’s “nice” 😀 isn\u{200b}'t it…", "It's “nice” isn't it…"),
        ("ﬁne café", "fine café"),
        ("a<br/>b", "a b"),
    ]);
}

#[test]
fn ranges_of_numbers_and_amounts_are_read() {
    check(&[
        ("$10-$20", "ten to twenty dollars"),
        ("$10-20 and $10–20 million", "ten to twenty dollars and ten to twenty million dollars"),
        ("$1.50-$2.50, 10-20 €", "one dollar and fifty cents to two dollars and fifty cents, ten to twenty euros"),
        ("500-1000 words", "five hundred to one thousand words"),
        ("1–2–3 and 9:00-10:00", "one to two to three and nine o'clock to ten o'clock"),
        ("555-1234, call 867-5309", "five five five, one two three four, call eight six seven, five three zero nine"),
    ]);
}

#[test]
fn currency_symbols_belong_to_the_nearest_number() {
    check(&[
        ("In 2024 $5 million was spent.", "In twenty twenty four five million dollars was spent."),
        ("3 $20 bills", "three twenty dollars bills"),
        ("20 € or 20€", "twenty euros or twenty euros"),
        (
            "$123456789012345678901234.50",
            "one two three four five six seven eight nine zero one two three four five six seven eight nine zero one two three four point five zero dollars",
        ),
    ]);
}

#[test]
fn a_hyphen_is_a_sign_only_where_no_word_or_number_precedes() {
    check(&[
        ("sub-$500 and x=-5", "sub five hundred dollars and x equals minus five"),
        ("\"-5\", (-5), $-5, -5 €", "“minus five”, (minus five), minus five dollars, minus five euros"),
        (
            "1e-5 and 2.5E+3",
            "one times ten to the power of minus five and two point five times ten to the power of three",
        ),
        ("10^-3, F-16", "ten to the power of minus three, F sixteen"),
        ("It is –5 °C, not –$5.", "It is minus five degrees Celsius, not minus five dollars."),
    ]);
}

#[test]
fn exponents_and_fractions_do_not_join_numbers() {
    check(&[
        (
            "10⁶, 10²³ and 10⁻³",
            "ten to the power of six, ten to the power of twenty three and ten to the power of minus three",
        ),
        ("5 m² and x³", "five square meters and x cubed"),
        ("3·10⁻⁶", "three times ten to the power of minus six"),
        ("xⁿ, a note¹, Ca²⁺", "x to the power of n, a note one, Ca two plus"),
        ("2⅜ cups, 2 3/8 cups, ⅞", "two and three eighths cups, two and three eighths cups, seven eighths"),
        ("5① and １２", "five one and twelve"),
        ("1/2 km, 2½ kg, (x+1)^2", "one half kilometer, two and one half kilograms, (x plus one) to the power of two"),
    ]);
}

#[test]
fn a_colon_after_a_time_is_punctuation() {
    check(&[
        ("9:00: Welcome", "nine o'clock: Welcome"),
        ("At 3:30: lunch", "At three thirty: lunch"),
        ("1:02:03.5", "one hour two minutes and three point five seconds"),
    ]);
}

#[test]
fn the_point_after_a_word_that_looks_like_an_abbreviation_ends_the_sentence() {
    check(&[
        ("We met in June. Prices rose.", "We met in June. Prices rose."),
        ("It ends in May. 5 people came.", "It ends in May. five people came."),
        ("We met in Jan. Prices rose. On Mon. we left.", "We met in January. Prices rose. On Monday we left."),
        ("I called Ed. Nobody answered.", "I called Ed. Nobody answered."),
        ("I asked Max. Everything is fine.", "I asked Max. Everything is fine."),
        ("He said, \"Ask Ed.\" Then he left.", "He said, “Ask Ed.” Then he left."),
        ("Max. 5, max. speed and fig. 3", "maximum five, maximum speed and figure three"),
        ("2nd ed. 1990, see Fig. B", "second edition nineteen ninety, see figure B"),
    ]);
}

#[test]
fn text_that_looks_like_markup_stays() {
    check(&[
        ("See <https://example.com>.", "See example dot com."),
        ("Jane <jane@x.org>", "Jane jane at x dot org"),
        ("if a<b and c>d", "if a is less than b and c is greater than d"),
        ("Vec<u8> x", "Vec u eight x"),
        ("<a href=\"https://x.org\">x</a> <br> <input disabled>y", "x y"),
        ("```ls``` lists files\n# Title", "ls lists files Title"),
        ("```sh\nls\n```\n# Title", "ls Title"),
        ("~~~\n```\n# code\n~~~\n# Title", "code Title"),
    ]);
}

#[test]
fn units_with_greek_letters_and_numbers_with_capitals_are_read() {
    check(&[
        ("5 μg, 5 µg and 10 μm", "five micrograms, five micrograms and ten micrometers"),
        ("3 kΩ, 50 Ω, 5 μg/mL", "three kilo ohms, fifty ohms, five micrograms per milliliter"),
        ("5 min. later, after 5 min. He left.", "five minutes later, after five minutes. He left."),
        ("60 km/h, 1 m/s", "sixty kilometers per hour, one meter per second"),
        ("a 7B model with 5 MB", "a seven B model with five megabytes"),
    ]);
}
