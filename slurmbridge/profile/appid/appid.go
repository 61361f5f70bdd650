// Package appid recognises a job's application from its script, without the parts that don't matter, and from where and
// how it was submitted. Users need not help.
package appid

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Evidence is the information about a job that identifies its application.
type Evidence struct {
	Named  string // the application's name by the job's owner or the site, "" = none
	Name   string // --job-name; "" = unknown
	Script []byte
	Args   string // the script's arguments, as in job.Note
	Dir    string // the working directory; "" = unknown
}

// App is a recognised application.
type App struct {
	Key  string `json:"key"`     // short and stable, e.g. "lmp-3f9a1c2b04d1"; "" = not recognised
	Name string `json:"program"` // that the main command runs, without launchers
	// Family is the same for the same script with other sizes, e.g. "lmp~90b1d2f3a4c5"; "" = no relatives.
	Family string `json:"family,omitempty"`
	// Sizes distinguish the application from its relatives, in the script's order. All members of a family have the
	// same number of sizes. They are from the script, not from the job's input files.
	Sizes []Size `json:"sizes,omitempty"`
	// Text is the identifying text, with marks for sizes and for masked parts; see Legible.
	Text string `json:"-"`
	// Why explains the recognition, a sentence each. Masked are the parts that don't count.
	Why    []string `json:"why"`
	Masked []Masked `json:"not_counted,omitempty"`
}

// Size is one of the numbers in which the members of a family differ.
type Size struct {
	Name  string  `json:"name"`  // of its option, variable, or file
	Value float64 `json:"value"` // > 0; a grid of 64x64x32 counts as its product
}

// Masked is a part of a script that doesn't count, and the reason.
type Masked struct {
	Text string `json:"text"`
	Why  string `json:"why"`
}

// maxSizes bounds the sizes of a family; a script with more numbers has no relatives.
const maxSizes = 32

// Identify recognises a job's application.
func Identify(j *Evidence) App {
	if j.Named != "" {
		return App{Key: j.Named, Name: j.Named, Why: []string{"the job's owner or the site calls it " + j.Named}}
	}
	if len(bytes.TrimSpace(j.Script)) == 0 {
		return App{Why: []string{"it has no script"}}
	}
	r := &reader{source: j.Script, funcs: map[string]bool{}, vars: map[string]string{}}
	a := App{}
	arguments := r.words(j.Args)
	body, isShell := r.script(j.Script, &a)
	switch {
	case body == "":
		return App{Why: []string{"its script runs nothing"}}
	case isShell && ValidName(r.app):
		return App{Key: r.app, Name: r.app, Why: []string{"its script sets SLURMBRIDGE_APP=" + r.app}}
	}
	text := ""
	if arguments != "" {
		text = "arguments " + arguments + "\n"
	}
	own := false // the folder was made for this job alone
	switch {
	case r.moved && r.relative == "":
		a.why("the folder of submission doesn't count: the script changes to a folder that it names")
	case isShell && r.relative == "" && r.rooted != "":
		a.why("the folder of submission doesn't count: the script names its input, %s", shortName(r.rooted))
	case j.Dir == "":
		a.why("the folder of submission is unknown")
	default:
		r.fresh = false
		text += "folder " + r.folder(j.Dir) + "\n"
		own = r.fresh
		a.why("the folder of submission counts: %s", r.whyFolder(isShell))
	}
	name := r.jobName(cmp.Or(j.Name, Option(j.Script, "job-name", "J")))
	switch {
	case r.payload != nil && r.payload.each && !tellsPayload(name):
		return App{Name: r.name, Why: append(a.Why, "neither the script nor the job's name says what "+
			r.payload.program+" runs")}
	case r.payload != nil || own:
		text += "job " + name + "\n"
		a.why("the job's name counts, %q: the script doesn't say what it runs", shortName(Legible(name)))
	}
	a.Text = text + body + r.period()
	a.Name = cmp.Or(r.name, "job")
	a.Masked = r.masked
	whole := []byte(a.Text + "\x00")
	for _, s := range r.sizes {
		whole = fmt.Append(whole, s.Value, " ")
	}
	a.Key = a.Name + "-" + hash(whole)
	if isShell && r.name != "" && len(r.sizes) <= maxSizes {
		a.Family = a.Name + "~" + hash([]byte(a.Text))
		a.Sizes = r.sizes
	}
	return a
}

func (a *App) why(format string, args ...any) { a.Why = append(a.Why, fmt.Sprintf(format, args...)) }

func hash(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:6])
}

// words returns a script's arguments with sizes marked and parts masked.
func (r *reader) words(args string) string {
	var at argumentList
	out := strings.Fields(args)
	for i, w := range out {
		out[i] = r.argument(w, &at)
	}
	if len(out) > 0 {
		r.relative = "its arguments"
	}
	return strings.Join(out, " ")
}

// whyFolder says why the folder of submission counts.
func (r *reader) whyFolder(isShell bool) string {
	switch {
	case !isShell:
		return "the script's input is unknown"
	case r.relative != "":
		return shortName(r.relative) + " may be relative to it"
	}
	return "the script names no input by an absolute path"
}

// script returns the identifying text of a script. isShell: it was parsed as a shell script.
func (r *reader) script(src []byte, a *App) (text string, isShell bool) {
	interpreter := interpreterOf(src)
	switch {
	case interpreter != "" && !shells[interpreter]:
		a.why("the script's whole text counts: it is for %s, not a shell", shortName(interpreter))
		r.name = clean(strings.TrimRight(interpreter, "0123456789."))
	default:
		if text, ok := r.shell(src); ok {
			return text, true
		}
		*r = reader{}
		a.why("the script's whole text counts: it can't be parsed as a shell script")
	}
	return "text\n" + string(withoutOptions(src)), false
}

// interpreterOf returns the program in a script's first line, "" = none.
func interpreterOf(src []byte) string {
	line, _, _ := bytes.Cut(src, []byte{'\n'})
	rest, ok := bytes.CutPrefix(line, []byte("#!"))
	if !ok {
		return ""
	}
	words := slices.DeleteFunc(strings.Fields(string(rest)), func(w string) bool {
		return strings.HasPrefix(w, "-") || base(w) == "env" || base(w) == "busybox" || assigns(w)
	})
	if len(words) == 0 {
		return "?"
	}
	return base(words[0])
}

// Option returns the value of an sbatch option in a script's head, "" = none. short may be "".
func Option(src []byte, long, short string) string {
	for line := range bytes.Lines(src) {
		words := strings.Fields(string(line))
		switch {
		case len(words) == 0:
			continue
		case words[0][0] != '#':
			return ""
		case words[0] != "#SBATCH":
			continue
		}
		for i, w := range words[1:] {
			if v, ok := strings.CutPrefix(w, "--"+long+"="); ok {
				return strings.Trim(v, `"'`)
			}
			if (w == "--"+long || short != "" && w == "-"+short) && i+2 < len(words) {
				return strings.Trim(words[i+2], `"'`)
			}
			if v, ok := strings.CutPrefix(w, "-"+short); ok && v != "" && short != "" {
				return strings.Trim(v, `"'`)
			}
		}
	}
	return ""
}

// withoutOptions removes sbatch's options, which precede the first command.
func withoutOptions(src []byte) []byte {
	var out []byte
	head := true
	for line := range bytes.Lines(src) {
		trimmed := bytes.TrimSpace(line)
		head = head && (len(trimmed) == 0 || trimmed[0] == '#')
		if !head || !bytes.HasPrefix(trimmed, []byte("#SBATCH")) {
			out = append(out, line...)
		}
	}
	return out
}

// ValidName reports whether a user may give an application this name.
func ValidName(s string) bool { return s != "" && len(s) <= 64 && !notPortable.MatchString(s) }

var notPortable = regexp.MustCompile(`[^A-Za-z0-9._-]+`)

// clean removes all but portable characters from a name.
func clean(s string) string {
	s = notPortable.ReplaceAllString(strings.TrimSuffix(strings.TrimSuffix(s, ".py"), ".sh"), "")
	return strings.Trim(s[:min(len(s), 32)], ".-")
}

// Legible returns a text with # for sizes and % for masked parts.
func Legible(text string) string {
	return strings.NewReplacer(string(sizeMark), "#", maskedMark, "%").Replace(text)
}

// Relation says how two jobs' applications are related.
type Relation string

// The relations.
const (
	Same     Relation = "one application"
	Relative Relation = "relatives"
	Others   Relation = "two applications"
	Unknown  Relation = "not known"
)

// Compare returns the relation of two jobs' applications, and the reason.
func Compare(a, b *App) (Relation, string) {
	switch {
	case a.Key == "" || b.Key == "":
		return Unknown, "one of them is not recognised"
	case a.Key == b.Key:
		return Same, "all parts that count are equal"
	case a.Family != "" && a.Family == b.Family:
		return Relative, "they differ in " + strings.Join(differing(a.Sizes, b.Sizes), ", ")
	}
	one, two := strings.Split(Legible(a.Text), "\n"), strings.Split(Legible(b.Text), "\n")
	for i := range max(len(one), len(two)) {
		switch {
		case i >= len(one):
			return Others, fmt.Sprintf("only the second has %q", two[i])
		case i >= len(two):
			return Others, fmt.Sprintf("only the first has %q", one[i])
		case one[i] != two[i]:
			return Others, fmt.Sprintf("%q is not %q", one[i], two[i])
		}
	}
	return Others, "they differ in numbers, and have too many to be relatives"
}

func differing(a, b []Size) []string {
	var out []string
	for i := range min(len(a), len(b)) {
		if a[i].Value != b[i].Value {
			out = append(out, fmt.Sprintf("%s (%g and %g)", a[i].Name, a[i].Value, b[i].Value))
		}
	}
	return out
}
