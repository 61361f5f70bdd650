package appid

import (
	"bytes"
	"cmp"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"mvdan.cc/sh/v3/syntax"
)

// Bounds on what is read as a shell's script: the parser calls itself for each bracket within another, and so does what
// walks and prints its result. A level took 8 KiB of stack at most.
const (
	maxParsed   = 64 << 10
	maxBrackets = 4000
)

// reader reads one job's script: what counts of it, and what is known of the rest.
type reader struct {
	sizes  []Size
	masked []Masked
	// name is of the last program, program the word that names it.
	name    string
	app     string // what the script calls itself by SLURMBRIDGE_APP
	payload *payload
	funcs   map[string]bool
	vars    map[string]string // with the values that are plain
	source  []byte
	nested  int
	// relative is a word that is found from the folder that the script works in, rooted an input that is named by its
	// whole path; moved: the script works in a folder that it names itself.
	relative, rooted string
	moved            bool
	fresh            bool // a name was seen that is made for one job
	dates            []time.Time
}

// parse reads a shell's script; nil = it can't be read as one.
func parse(src []byte) *syntax.File {
	brackets := 0
	for _, c := range src {
		switch c {
		case '(', '[', '{', '`', '|', '&':
			brackets++
		}
		if c < '\t' {
			return nil // Slurm takes none, and texts are marked by them
		}
	}
	if len(src) > maxParsed || brackets > maxBrackets {
		return nil
	}
	f, err := syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(bytes.NewReader(src), "")
	if err != nil {
		return nil
	}
	return f
}

// shell returns what counts of a shell's script: without comments and messages,
// with sizes marked and what doesn't count masked. false = it can't be read as one.
func (r *reader) shell(src []byte) (string, bool) {
	f := parse(src)
	if f == nil {
		return "", false
	}
	heard := true
	first := f.Stmts[:min(1, len(f.Stmts))]
	f.Stmts = slices.DeleteFunc(slices.Clone(f.Stmts), func(s *syntax.Stmt) bool {
		if commandOf(s) == "exec" && len(s.Cmd.(*syntax.CallExpr).Args) == 1 {
			heard = false // what follows writes into a file
		}
		return heard && idle(s) && !(commandOf(s) == "sleep" && slices.Contains(first, s)) // that may be the job
	})
	top := map[*syntax.CallExpr]bool{}
	for _, s := range f.Stmts {
		sequence(s.Cmd, top)
	}
	syntax.Walk(f, func(n syntax.Node) bool {
		switch n := n.(type) {
		case *syntax.FuncDecl:
			if n.Name != nil {
				r.funcs[n.Name.Value] = true
			}
		case *syntax.Stmt:
			r.redirections(n)
			r.written(n, src)
		case *syntax.DeclClause:
			for _, a := range n.Args {
				r.assign(a)
			}
		case *syntax.CallExpr:
			r.call(n, top[n])
		}
		return true
	})
	var out bytes.Buffer
	printer := syntax.NewPrinter(syntax.SingleLine(true))
	for _, s := range f.Stmts {
		if err := printer.Print(&out, s); err != nil {
			return "", false
		}
		out.WriteByte('\n')
	}
	return strings.TrimSpace(out.String()), true
}

// sequence adds the commands that run one after the other in any case: a; b && c.
func sequence(c syntax.Command, top map[*syntax.CallExpr]bool) {
	switch c := c.(type) {
	case *syntax.CallExpr:
		top[c] = true
	case *syntax.BinaryCmd:
		if c.Op == syntax.AndStmt || c.Op == syntax.OrStmt {
			sequence(c.X.Cmd, top)
			sequence(c.Y.Cmd, top)
		}
	}
}

// Commands without an effect on what the job computes: messages print something or wait; facts print what names or
// numbers a node, a process or a time, and may stand in a message, echo $(date).
var (
	messages = set("echo date hostname nvidia-smi printf sleep set")
	facts    = set("date hostname pwd whoami id uname nproc")
)

// idle reports whether a statement is a message or waits, and neither runs nor sets anything in its arguments.
func idle(s *syntax.Stmt) bool {
	name := commandOf(s)
	if !messages[name] || len(s.Redirs) > 0 || s.Background || s.Coprocess || s.Negated {
		return false
	}
	call := s.Cmd.(*syntax.CallExpr)
	option := false
	for _, w := range call.Args[1:] {
		arg := literal(w)
		switch {
		case name == "printf" && strings.HasPrefix(arg, "-v"): // it sets a variable
			return false
		case name == "set" && option && arg == "pipefail":
			option = false
		case name == "set": // set -- 128 sets $1
			if len(arg) < 2 || arg == "--" || arg[0] != '-' && arg[0] != '+' {
				return false
			}
			option = strings.HasSuffix(arg, "o")
		}
	}
	quiet := len(call.Assigns) == 0
	syntax.Walk(s, func(n syntax.Node) bool {
		switch n := n.(type) {
		case *syntax.CallExpr:
			quiet = quiet && (n == call || len(n.Args) > 0 && len(n.Assigns) == 0 && facts[literal(n.Args[0])])
		case *syntax.CmdSubst:
			quiet = quiet && len(n.Stmts) <= 1
		case *syntax.ParamExp:
			quiet = quiet && (n.Exp == nil || !strings.ContainsAny(n.Exp.Op.String(), "=?"))
		case *syntax.ProcSubst, *syntax.ArithmExp, *syntax.BinaryCmd, *syntax.Redirect, *syntax.FuncDecl:
			quiet = false
		}
		return quiet
	})
	return quiet
}

// commandOf is the name of a statement's command, "" = it isn't a plain one.
func commandOf(s *syntax.Stmt) string {
	if call, ok := s.Cmd.(*syntax.CallExpr); ok && len(call.Args) > 0 {
		return literal(call.Args[0])
	}
	return ""
}

// plain returns a word without its quotes; false = the shell makes something of it first.
func plain(w *syntax.Word) (string, bool) {
	var b strings.Builder
	var add func(parts []syntax.WordPart) bool
	add = func(parts []syntax.WordPart) bool {
		for _, p := range parts {
			switch p := p.(type) {
			case *syntax.Lit:
				b.WriteString(p.Value)
			case *syntax.SglQuoted:
				b.WriteString(p.Value)
			case *syntax.DblQuoted:
				if !add(p.Parts) {
					return false
				}
			default:
				return false
			}
		}
		return true
	}
	if w == nil || !add(w.Parts) {
		return "", false
	}
	return b.String(), true
}

// literal is a plain word, "" for others.
func literal(w *syntax.Word) string { s, _ := plain(w); return s }

// replace puts a text in a word's place.
func replace(w *syntax.Word, text string) { w.Parts = []syntax.WordPart{&syntax.Lit{Value: text}} }

// assign reads a variable's assignment.
func (r *reader) assign(a *syntax.Assign) {
	if a.Name == nil || a.Value == nil {
		return
	}
	v, ok := plain(a.Value)
	if !ok {
		r.maskParts(a.Value)
		r.vars[a.Name.Value] = r.leading(a.Value)
		return
	}
	r.vars[a.Name.Value] = v
	if a.Name.Value == "SLURMBRIDGE_APP" {
		r.app = v
	}
	if text := r.value(a.Name.Value, v, naming{sizes: true}); text != v {
		replace(a.Value, text)
	}
}

// maskParts masks what never counts in a word that the shell makes something of. What follows a variable in a temporary
// folder, $TMPDIR/dask-12 or /tmp/$USER-12, is masked as if the path were written out.
func (r *reader) maskParts(w *syntax.Word) {
	path := "" // the word so far, if it is one of a temporary folder
	part := func(text *string) {
		counts, whole := strings.CutPrefix(r.named(path+*text, naming{}), path)
		switch {
		case !whole || len(path) > maxBefore:
			path = "" // a word may have as many parts as letters
		case path != "" || strings.HasPrefix(*text, "/tmp/"):
			path += *text
		}
		*text = counts
	}
	names := map[*syntax.Lit]bool{} // of variables
	syntax.Walk(w, func(n syntax.Node) bool {
		switch n := n.(type) {
		case *syntax.Lit:
			if !names[n] {
				part(&n.Value)
			}
		case *syntax.SglQuoted:
			part(&n.Value)
		case *syntax.ParamExp:
			names[n.Param] = true
			switch {
			case path != "":
				path += "user"
			case n.Param != nil && temporary[n.Param.Value]:
				path = "/tmp"
			}
		case *syntax.CmdSubst, *syntax.ProcSubst:
			return false // commands are read as such
		}
		return true
	})
}

// temporary are variables that hold a temporary folder.
var temporary = set("TMPDIR TMP TEMP TEMPDIR SLURM_TMPDIR")

// leading returns what a word begins with as far as a path needs it: its first letters, the value of the variable that
// it begins with, "." where it is found from the folder that the script works in, "" = not known.
func (r *reader) leading(w *syntax.Word) string {
	part := w.Parts[0]
	if q, ok := part.(*syntax.DblQuoted); ok && len(q.Parts) > 0 {
		part = q.Parts[0]
	}
	switch p := part.(type) {
	case *syntax.Lit:
		return p.Value
	case *syntax.SglQuoted:
		return p.Value
	case *syntax.CmdSubst:
		return "./"
	case *syntax.ParamExp:
		if p.Param == nil {
			return ""
		}
		name := p.Param.Value
		if v, ok := r.vars[name]; ok {
			return v
		}
		if here[name] || strings.Trim(name, "0123456789@*") == "" {
			return "./"
		}
	}
	return ""
}

// here are variables that hold the folder of submission, or what is in it.
var here = set("PWD OLDPWD SLURM_SUBMIT_DIR BASH_SOURCE")

// redirections leaves out where output goes, unless a later command may read it, and reads what is the input.
func (r *reader) redirections(s *syntax.Stmt) {
	s.Redirs = slices.DeleteFunc(s.Redirs, func(d *syntax.Redirect) bool {
		if d.Word == nil || d.Hdoc != nil {
			return false
		}
		to, ok := plain(d.Word)
		switch d.Op {
		case syntax.RdrIn, syntax.RdrInOut, syntax.WordHdoc:
			if d.Op != syntax.WordHdoc {
				r.path(r.lead(d.Word), true)
			}
			if text := r.value("input", to, naming{sizes: true, files: true}); ok && text != to {
				replace(d.Word, text)
			}
		case syntax.DplOut:
			return d.N != nil && d.N.Value == "2"
		case syntax.RdrOut, syntax.AppOut, syntax.RdrAll, syntax.AppAll, syntax.RdrClob:
			log := d.N != nil && d.N.Value == "2" || to == "/dev/null"
			program := commandOf(s) != "" && !writes[commandOf(s)]
			return log || program && !(ok && bytes.Count(r.source, []byte(to)) > 1)
		}
		return false
	})
}

// written reads what stands in a here document as a script of its own, where a shell reads it or it is written into a
// script's file.
func (r *reader) written(s *syntax.Stmt, src []byte) {
	isScript := shells[base(commandOf(s))]
	for _, d := range s.Redirs {
		isScript = isScript || d.Op == syntax.RdrOut && d.Word != nil && strings.HasSuffix(r.ending(d.Word), ".sh")
	}
	for _, d := range s.Redirs {
		if d.Hdoc == nil || !isScript {
			continue
		}
		from, to := d.Hdoc.Pos().Offset(), d.Hdoc.End().Offset()
		if text, ok := r.within(src[min(int(from), len(src)):min(int(to), len(src))]); ok {
			replace(d.Hdoc, text+"\n")
		}
	}
}

// within reads a shell's script that stands in another one.
func (r *reader) within(src []byte) (text string, ok bool) {
	if r.nested >= maxNested {
		return "", false
	}
	r.nested++
	defer func() { r.nested-- }()
	return r.shell(src)
}

// ending is a word's last plain part.
func (r *reader) ending(w *syntax.Word) string {
	if lit, ok := w.Parts[len(w.Parts)-1].(*syntax.Lit); ok {
		return lit.Value
	}
	return literal(w)
}

// writes are commands whose purpose is their output; tools are other commands that are no job's program; quiet are
// commands whose words are no input of the job's.
var (
	writes = set("echo printf cat sed awk gawk head tail sort cut tr envsubst m4 jq yq tee")
	tools  = set("cp mv ln rsync scp tar gzip gunzip unzip grep find xargs diff md5sum wget curl git pip pip3 source .")
	quiet  = set("[ [[ : true false test cd pushd popd module ml export mkdir rm rmdir ulimit date hostname set unset " +
		"nvidia-smi sleep wait exit return trap touch kill chmod umask shopt conda mamba micromamba deactivate activate ls " +
		"pwd which type whoami id uname nproc free df lscpu lspci env printenv sacct expr shuf bc squeue scontrol sstat " +
		"eval read let local basename dirname seq break continue shift times hash alias command builtin dcgmi nvcc " +
		"rocm-smi spack sbcast")
)

// unknown stands for the rest of a word that the shell makes something of.
const unknown = "$"

// call reads a command. top: it runs in any case, after those before it.
func (r *reader) call(c *syntax.CallExpr, top bool) {
	for _, a := range c.Assigns {
		r.assign(a)
	}
	if len(c.Args) == 0 {
		return
	}
	words := make([]string, len(c.Args))
	known := make([]bool, len(c.Args))
	for i, w := range c.Args {
		words[i], known[i] = plain(w)
		if p, ok := variableAlone(w); ok {
			words[i] = r.vars[p]
			if words[i] == "" || strings.Contains(words[i], " ") {
				words[i] = p // it names the program, if one does
			}
		} else if !known[i] {
			words[i] = r.leading(w) + unknown
		}
	}
	own := unwrap(words)
	if own.program < 0 {
		own.args = len(words)
	}
	for i := range words[:own.args] {
		switch {
		case i == own.program && own.means == shellCode && known[i]: // what a shell is given on its command line
			if text, ok := r.within([]byte(words[i])); ok {
				replace(c.Args[i], text)
			}
		case !known[i]:
			r.maskParts(c.Args[i])
		default:
			r.launch(c.Args[i], words, i)
		}
	}
	if own.program < 0 || own.means == shellCode {
		r.arguments(c.Args[own.args:], words[own.args:], known[own.args:])
		return
	}
	name := base(words[own.program])
	switch {
	case name == "cd" || name == "pushd":
		r.changeTo(c, words, top)
	case quiet[name] || messages[name] || writes[name] || tools[name]:
		for i := own.args; i < len(words); i++ {
			if !quiet[name] && !messages[name] {
				r.path(words[i], true)
			}
			r.maskWord(c.Args[i], words[i], known[i])
		}
	default:
		r.program(words, own, name)
		r.arguments(c.Args[own.args:], words[own.args:], known[own.args:])
	}
}

// maskWord masks what never counts in a word.
func (r *reader) maskWord(w *syntax.Word, text string, known bool) {
	if !known {
		r.maskParts(w)
	} else if m := r.named(text, naming{}); m != text {
		replace(w, m)
	}
}

// launch masks a launcher's own word where it is of no account: a port, an address, a day.
func (r *reader) launch(w *syntax.Word, words []string, i int) {
	name, value, ok := strings.Cut(words[i], "=")
	if !ok && i > 0 && strings.HasPrefix(words[i-1], "-") {
		name, value = words[i-1], words[i]
	}
	means, why := meaningOf(name, false)
	if value != "" && (means == where || means == masked) && name != words[i] {
		replace(w, strings.TrimSuffix(words[i], value)+r.mask(name+" "+value, why))
		return
	}
	r.maskWord(w, words[i], true)
}

// variableAlone returns the variable that is all of a word.
func variableAlone(w *syntax.Word) (string, bool) {
	if len(w.Parts) != 1 {
		return "", false
	}
	part := w.Parts[0]
	if q, ok := part.(*syntax.DblQuoted); ok && len(q.Parts) == 1 {
		part = q.Parts[0]
	}
	p, ok := part.(*syntax.ParamExp)
	if !ok || p.Param == nil || p.Exp != nil || p.Index != nil || !syntax.ValidName(p.Param.Value) {
		return "", false
	}
	return p.Param.Value, true
}

// program notes the program of a command.
func (r *reader) program(words []string, own command, name string) {
	word := words[own.program]
	if own.means == otherCode || r.funcs[name] {
		word = ""
	}
	if p := payloadOf(name, words[own.program+1:]); p != nil {
		r.payload = p
	}
	if n := clean(name); n != "" && !r.funcs[name] {
		r.name = n
	}
	switch {
	case own.means == module && r.payload == nil && name != "snakemake":
		r.path("./"+word, true)
	case own.means == script:
		r.path(word, true)
	case strings.Contains(word, "/") && word[0] != '/':
		r.path(word, true)
	}
}

// changeTo reads a change of folder.
func (r *reader) changeTo(c *syntax.CallExpr, words []string, top bool) {
	if len(words) < 2 {
		return
	}
	to, known := plain(c.Args[1])
	lead := r.lead(c.Args[1])
	if !known {
		r.maskParts(c.Args[1])
	}
	switch {
	case absolute(lead):
		r.rooted = cmp.Or(r.rooted, lead)
		r.moved = r.moved || top
	case lead == "" || lead == "./":
		r.moved = r.moved && !top
		r.path("./"+to, true)
	default:
		r.path("./"+to, true)
	}
	if text := r.folder(to); known && text != to {
		replace(c.Args[1], text)
	}
}

func absolute(path string) bool { return strings.HasPrefix(path, "/") || strings.HasPrefix(path, "~") }

// path notes whether a word is found from the folder that the script works in. file: it is one, if it is no number and
// no option.
func (r *reader) path(w string, file bool) {
	if w == "" || w == unknown || strings.Contains(w, "://") ||
		strings.HasPrefix(w, "-") || strings.HasPrefix(w, "/dev/") {
		return
	}
	if absolute(w) {
		r.rooted = cmp.Or(r.rooted, w)
		return
	}
	_, number := parseQuantity(w)
	dir, _, ending := cutPath(w)
	if !r.moved && !number && (file || dir != "" || ending != "") && strings.Trim(w, "0123456789.:+-eE") != "" {
		r.relative = cmp.Or(r.relative, w)
	}
}

// lead is a word as path needs it.
func (r *reader) lead(w *syntax.Word) string {
	if s, ok := plain(w); ok {
		return s
	}
	return r.leading(w)
}

// arguments reads a program's arguments: sizes, files, and the rest as it is.
func (r *reader) arguments(args []*syntax.Word, words []string, known []bool) {
	var at argumentList
	for i, w := range words {
		if !known[i] {
			r.maskParts(args[i])
			r.path(w, false)
			at.option = ""
		} else if text := r.argument(w, &at); text != w {
			replace(args[i], text)
		}
	}
}

// argumentList is a place in a list of arguments: right after an option, "" = none, after so many words that were no
// option's, the last option before it.
type argumentList struct {
	option, last string
	words        int
}

// inArguments: sizes are found in files' names there, and where results go is told by options.
var inArguments = naming{sizes: true, row: true, files: true}

// argument returns what counts of one argument.
func (r *reader) argument(w string, at *argumentList) string {
	before := at.option
	at.option = ""
	_, isNumber := parseQuantity(strings.TrimPrefix(w, "-"))
	name, value, assigned := strings.Cut(w, "=")
	dashed := len(w) > 1 && w[0] == '-' && !isNumber
	if dashed && !assigned {
		if _, attached := parseQuantity(w[2:]); attached && w[1] != '-' { // -n1000 is -n 1000
			return w[:2] + r.value(w[:2], w[2:], inArguments)
		}
		at.option, at.last = w, w
		return w
	}
	if !dashed {
		at.words++
	}
	if at.last == "--wait-for-files" && !dashed {
		return r.mask(w, "Snakemake's rule and its wildcards say it")
	}
	w = r.wildcards(w)
	switch {
	case strings.HasPrefix(w, "base64//"):
		return r.decoded(w)
	case assigned && syntax.ValidName(strings.NewReplacer(".", "_", "-", "_").Replace(strings.TrimLeft(name, "-+~"))):
		r.input(name, value, false)
		return name + "=" + r.value(name, value, inArguments)
	case before != "":
		r.input(before, w, !strings.HasPrefix(before, "--"))
		return r.value(before, w, inArguments)
	}
	r.path(w, at.words > 1)
	return r.value("argument "+strconv.Itoa(at.words), w, inArguments)
}

// input notes where an option's value is found, unless results go there.
func (r *reader) input(option, value string, file bool) {
	if means, _ := meaningOf(option, false); means != output {
		r.path(value, file)
	}
}

// base is the last part of a path, "" where there is none.
func base(s string) string {
	if b := path.Base(s); b != "." && b != "/" && b != ".." {
		return b
	}
	return ""
}
