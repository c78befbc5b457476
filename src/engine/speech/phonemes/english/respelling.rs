//! Words of computing that the lexicons lack, and whose spelling misleads: what they sound like.

/// Words, and the known words and letters (in capitals) that they are read as.
const RESPELLED: [(&str, &str); 48] = [
    ("plugin", "plug in"), ("plugins", "plug inns"), ("addon", "add on"), ("addons", "add onz"), ("api", "API"),
    ("apis", "A P eyes"), ("url", "URL"), ("urls", "U R else"), ("github", "git hub"), ("gitlab", "git lab"),
    ("wifi", "why fie"), ("nginx", "engine X"), ("sqlite", "SQL light"), ("mysql", "my SQL"), ("async", "A sink"),
    ("regex", "red jex"), ("localhost", "local host"), ("microservice", "micro service"), ("linux", "lynnucks"),
    ("ubuntu", "oobuntoo"), ("debian", "debbie an"), ("kubernetes", "koobernetties"), ("numpy", "numb pie"),
    ("scipy", "sigh pie"), ("pytorch", "pie torch"), ("pypi", "pie PI"), ("openai", "open AI"), ("chatgpt", "chat GPT"),
    ("config", "con fig"), ("configs", "con figs"), ("sudo", "sue doo"), ("repo", "ree poe"), ("repos", "ree poes"),
    ("username", "user name"), ("usernames", "user names"), ("filename", "file name"), ("filenames", "file names"),
    ("timestamp", "time stamp"), ("timestamps", "time stamps"), ("cpu", "CPU"), ("gpu", "GPU"), ("http", "HTTP"),
    ("https", "HTTPS"), ("html", "HTML"), ("css", "CSS"), ("pdf", "PDF"), ("usb", "USB"), ("llm", "LLM"),
];

/// What a lower-case word is read as.
pub fn respelling(word: &str) -> Option<&'static str> {
    RESPELLED.iter().find(|(name, _)| *name == word).map(|(_, words)| *words)
}
