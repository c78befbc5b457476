//! Texts and the words that are spoken for them.

use super::super::cleaning::clean;
use super::super::token::tokenize;
use super::*;

fn words(text: &str, language: Language) -> String {
    let mut spoken = String::new();
    for token in normalize(&tokenize(&clean(text)), language) {
        if token.space_before && !spoken.is_empty() {
            spoken.push(' ');
        }
        spoken.push_str(&token.text);
    }
    spoken.trim().to_owned()
}

#[track_caller]
fn check(language: Language, cases: &[(&str, &str)]) {
    let spoken = cases.iter().map(|(text, expected)| (*text, words(text, language), *expected));
    let wrong: Vec<_> = spoken.filter(|(_, actual, expected)| actual != expected).collect();
    assert!(wrong.is_empty(), "text, actual words, expected words: {wrong:#?}");
}

#[test]
fn capitals_are_spelled_only_if_they_are_no_word() {
    check(
        Language::Spanish,
        &[
            ("¡NO lo hagas!", "NO lo hagas!"),
            ("LA CASA", "LA CASA"),
            ("el ADN y la ONU", "el a de ene y la ONU"),
            ("un PDF con vitamina C", "un pe de efe con vitamina ce"),
            ("la IA de EE. UU. crece", "la i a de Estados Unidos crece"),
            ("LA ONG ES SUYA", "LA ONG ES SUYA"),
        ],
    );
    check(
        Language::Italian,
        &[("NON farlo! Il DNA", "NON farlo! Il di enne a"), ("LA CASA DI MARCO", "LA CASA DI MARCO")],
    );
}

#[test]
fn roman_numerals_and_ordinals_are_read() {
    check(
        Language::Spanish,
        &[
            ("el siglo XXI y el siglo V", "el siglo veintiuno y el siglo quinto"),
            ("Juan Pablo II, Isabel II y Alfonso XIII", "Juan Pablo segundo, Isabel segunda y Alfonso trece"),
            ("la II Guerra Mundial", "la segunda Guerra Mundial"),
            ("en el s. XX, n.º 5", "en el siglo veinte, número cinco"),
            ("1º, 2.ª, 3er y 25º", "primero, segunda, tercer y vigésimo quinto"),
        ],
    );
    check(
        Language::Italian,
        &[
            ("il XXI secolo e il secolo XIX", "il ventunesimo secolo e il secolo diciannovesimo"),
            ("Giovanni Paolo II. I ragazzi", "Giovanni Paolo secondo. I ragazzi"),
            ("1º e 23ª, il 1° maggio", "primo e ventitreesima, il primo maggio"),
        ],
    );
}

#[test]
fn numbers_agree_with_what_they_count() {
    check(
        Language::Spanish,
        &[
            ("1 km, 21 km, 1 h y 21 h", "un kilómetro, veintiún kilómetros, una hora y veintiuna horas"),
            ("€1, 1 €, £1 y £200", "un euro, un euro, una libra y doscientas libras"),
            ("$5 millones, €10-€20", "cinco millones de dólares, diez a veinte euros"),
            ("1.000.000 €, $2.000", "un millón de euros, dos mil dólares"),
            ("-5 €, -€5 y €-5", "menos cinco euros, menos cinco euros y menos cinco euros"),
            ("5 m², 60 km/h, 20 °C", "cinco metros cuadrados, sesenta kilómetros por hora, veinte grados celsius"),
            ("1/2, 2½ y 3/4", "un medio, dos y medio y tres cuartos"),
            ("10⁶, 3x4", "diez elevado a seis, tres por cuatro"),
            ("1/2 km, 3/4 kg, 2½ km", "medio kilómetro, tres cuartos de kilogramo, dos y medio kilómetros"),
        ],
    );
    check(
        Language::Italian,
        &[
            ("1 km, 1 €, € 5, 1 h", "un chilometro, un euro, cinque euro, una ora"),
            ("5 milioni €, 3/4 e 2½", "cinque milioni di euro, tre quarti e due e mezzo"),
            ("5-10 km, 20%", "cinque a dieci chilometri, venti per cento"),
        ],
    );
}

#[test]
fn dates_and_times_are_read() {
    check(
        Language::Spanish,
        &[
            ("12/05/2024", "doce de mayo de dos mil veinticuatro"),
            ("2024-05-12 a las 15:30 h", "doce de mayo de dos mil veinticuatro a las quince y treinta horas"),
            ("31/13/2024", "treinta y uno barra trece barra dos mil veinticuatro"),
        ],
    );
    check(Language::Italian, &[("01/05/2024", "primo maggio due mila ventiquattro")]);
}

#[test]
fn the_point_of_an_abbreviation_stays_if_it_ends_the_sentence() {
    check(
        Language::Spanish,
        &[
            ("pan, vino, etc. Luego salió.", "pan, vino, etcétera. Luego salió."),
            ("pan, etc. y vino, etc.", "pan, etcétera y vino, etcétera."),
            ("El Sr. López", "El señor López"),
        ],
    );
    check(Language::Italian, &[("pane, ecc. Poi uscì.", "pane, eccetera. Poi uscì.")]);
}
