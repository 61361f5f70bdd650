// Package appid recognises an application by what its user wrote, without the
// user's help: the job script, less what doesn't matter, and its main command.
package appid

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"path"
	"regexp"
	"slices"
	"strings"
)

// App is a recognised application.
type App struct {
	Key  string // short and stable, e.g. "lmp-3f9a1c2b04d1"; "" = nothing to go by
	Name string // of the program that the main command runs, launchers aside
	// Family is the same for the same script with other sizes, e.g.
	// "lmp~90b1d2f3a4c5"; "" = it has no relatives.
	Family string
	// Sizes distinguish it from its relatives, in the script's order: all members of a family have
	// the same number of them, with the same names. Only the script is read, not the job's input
	// files.
	Sizes []Size
}

// maxScript is as much of a script as counts, bytes.
const maxScript = 256 << 10

// Identify recognises a job's application. A name its owner gave (--comment=
// app=NAME) is the key as it is. args are the script's arguments, as job.Note has them.
func Identify(named string, script []byte, args string) App {
	if named != "" {
		return App{Key: named, Name: named}
	}
	lines := Normalise(script)
	if len(lines) == 0 {
		return App{}
	}
	if args != "" {
		lines = slices.Insert(lines, 0, "arguments "+args)
	}
	h := sha256.New()
	for _, l := range lines {
		h.Write([]byte(l))
		h.Write([]byte{'\n'})
	}
	a := App{Key: command(lines) + "-" + hex.EncodeToString(h.Sum(nil)[:6])}
	f := newFamily(lines)
	if a.Name = f.name; a.Name == "" {
		a.Name = "job"
	}
	if a.Family = f.key(); a.Family != "" {
		a.Sizes = f.sizes
	}
	return a
}

// Normalise strips a script of comments, of #SBATCH lines, of what differs
// between runs of the same thing (set -x, echo, date), and of white space. What a
// here document holds is a program's input: all of it stays.
func Normalise(script []byte) []string {
	if len(script) > maxScript {
		script = script[:maxScript]
	}
	var out []string
	var joined []byte // what folded lines have come to; it grows in place, however many there are
	here := ""        // what ends the here document that lines are in
	for raw := range bytes.SplitSeq(script, []byte{'\n'}) {
		piece := strings.Join(strings.Fields(strings.ToValidUTF8(string(raw), "?")), " ")
		if len(joined) == 0 && (piece == "" || here == "" && piece[0] == '#') || here == "" && len(joined) > 0 && joined[0] == '#' {
			joined = joined[:0]
			continue
		}
		if cut, more := strings.CutSuffix(piece, "\\"); more {
			if cut = strings.TrimSpace(cut); string(joined) == " " {
				joined = joined[:0]
			}
			if cut != "" || len(joined) == 0 {
				joined = append(append(joined, cut...), ' ')
			}
			continue
		}
		line := string(joined) + piece
		joined = joined[:0]
		switch m := hereDocument.FindStringSubmatch(line); {
		case here != "" && line == here && raw[0] != ' ': // one that is indented by blanks is text
			here = ""
		case here != "":
		case m != nil:
			here = m[1]
		case idle(line, len(out) == 0):
			continue
		}
		out = append(out, line)
	}
	if len(joined) > 0 {
		out = append(out, strings.TrimSpace(string(joined)))
	}
	return out
}

// hereDocument matches the beginning of one (<<EOF, <<-'EOF'); <<< begins none, and nor does a shift in $((1<<20)).
var hereDocument = regexp.MustCompile(`(?:^|[^<])<<-? ?["'\\]?([^\s<"'\\0-9;|&()][^\s"'\\;|&()]*)`)

// idle reports whether a line does nothing but say something or wait: it holds one command, neither redirected nor piped,
// and runs no other in its arguments. A sleep at the beginning may be the job.
func idle(line string, first bool) bool {
	word, rest, _ := strings.Cut(line, " ")
	switch word {
	case "echo", "date", "hostname", "nvidia-smi":
	case "printf": // -v sets a variable
		if strings.HasPrefix(rest, "-v") {
			return false
		}
	case "sleep":
		if first {
			return false
		}
	case "set": // its options alone: set -- 128 sets $1
		option := false
		for _, w := range strings.Fields(rest) {
			if option && w == "pipefail" {
				option = false
				continue
			}
			if w[0] != '-' && w[0] != '+' || w == "--" || w == "-" {
				return false
			}
			option = strings.HasSuffix(w, "o")
		}
	default:
		return false
	}
	for _, m := range substituted.FindAllStringSubmatch(line, -1) {
		words := m[1] + m[2]
		if name, _, _ := strings.Cut(strings.TrimSpace(words), " "); !tells[name] || strings.ContainsAny(words, ";|&<>`$(") {
			return false
		}
	}
	return !strings.ContainsAny(unquoted(line), ";|&<>")
}

// substituted matches a command in another's arguments. The commands in tells change nothing.
var substituted = regexp.MustCompile("\\$\\(([^)]*)|`([^`]*)`")

var tells = map[string]bool{"date": true, "hostname": true, "pwd": true, "whoami": true, "id": true, "uname": true, "nproc": true, "": true}

// unquoted is a line of shell without what stands in quotes or brackets in it.
func unquoted(line string) string {
	var b strings.Builder
	for i := 0; i < len(line); i++ {
		switch c := line[i]; {
		case c == '\\':
			i++
		case c == '\'' || c == '"' || c == '`':
			i = closing(line, i)
		case c == '$' && i+1 < len(line) && (line[i+1] == '(' || line[i+1] == '{'):
			i = bracket(line, i+1)
		default:
			b.WriteByte(c)
		}
	}
	return b.String()
}

// launchers are passed over by command; see launched for the ones with options.
var launchers = map[string]bool{
	"srun": true, "mpirun": true, "mpiexec": true, "env": true, "time": true, "exec": true, "nohup": true,
	"singularity": true, "apptainer": true, "run": true, "conda": true, "numactl": true, "python": true, "python3": true,
}

// command is what a key begins with, so that people see what it may be. It doesn't
// know launchers' options, and stays as it is: keys are what profiles are found by.
func command(lines []string) string {
	for i := len(lines) - 1; i >= 0; i-- {
		for _, w := range strings.Fields(lines[i]) {
			base := path.Base(strings.Trim(w, `"'`))
			if launchers[base] || strings.HasPrefix(w, "-") || strings.Contains(w, "=") ||
				base == "." || base == "/" || strings.Trim(base, "0123456789:.") == "" { // an option, or an option's number
				continue
			}
			if name := clean(base); name != "" && !word[name] {
				return name
			}
			break
		}
	}
	return "job"
}

// word holds what starts a line of shell that runs nothing.
var word = map[string]bool{
	"cd": true, "module": true, "source": true, "export": true, "if": true, "fi": true, "for": true, "do": true, "done": true,
	"while": true, "then": true, "else": true, "wait": true, "exit": true, "ulimit": true, "mkdir": true, "rm": true, "cp": true, "esac": true,
	"echo": true, "date": true, "hostname": true, "printf": true, "set": true, "nvidia-smi": true,
}

// clean keeps of a name what can stand anywhere.
func clean(s string) string {
	s = strings.TrimSuffix(strings.TrimSuffix(s, ".py"), ".sh")
	var b strings.Builder
	for _, r := range s {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '.' || r == '-' {
			b.WriteRune(r)
		}
		if b.Len() == 32 {
			break
		}
	}
	return strings.Trim(b.String(), ".-")
}
