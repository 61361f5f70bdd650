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

// Bounds on scripts that are parsed: the parser, and the functions that walk and print its result, call themselves for
// each nested bracket. A level took at most 8 KiB of stack.
const (
	maxParsed   = 64 << 10
	maxBrackets = 4000
)

// reader reads one job's script.
type reader struct {
	sizes    []Size
	masked   []Masked
	name     string // of the last program
	app      string // SLURMBRIDGE_APP, if the script sets it
	payload  *payload
	funcs    map[string]bool
	vars     map[string]string // known values
	source   []byte
	nested   int
	relative string // a word that may be a path relative to the script's working directory, "" = none
	rooted   string // an input with an absolute path, "" = none
	moved    bool   // the script has changed to a folder that it names
	fresh    bool   // a name that was made for one job has been seen
	dates    []time.Time
}

// parse parses a shell script; nil = it is invalid, or beyond the bounds.
func parse(src []byte) *syntax.File {
	brackets := 0
	for _, c := range src {
		switch c {
		case '(', '[', '{', '`', '|', '&':
			brackets++
		}
		if c < '\t' {
			return nil // Slurm refuses them, and the marks use them
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

// shell returns the identifying text of a shell script: without comments and messages, with sizes marked and parts
// masked. It returns false if the script can't be parsed.
func (r *reader) shell(src []byte) (string, bool) {
	f := parse(src)
	if f == nil {
		return "", false
	}
	toLog := true // output goes to the job's log
	first := f.Stmts[:min(1, len(f.Stmts))]
	f.Stmts = slices.DeleteFunc(slices.Clone(f.Stmts), func(s *syntax.Stmt) bool {
		if commandOf(s) == "exec" && len(s.Cmd.(*syntax.CallExpr).Args) == 1 {
			toLog = false // exec >FILE redirects the commands after it
		}
		return toLog && idle(s) && !(commandOf(s) == "sleep" && slices.Contains(first, s)) // sleep may be the job
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

// sequence adds the commands of a statement that run in sequence: a && b.
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

// Commands without an effect on the job's result: messages print something or wait; facts print a node, process, user
// or time, and may be part of a message, as in echo $(date).
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
		case name == "printf" && strings.HasPrefix(arg, "-v"): // printf sets a variable
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

// commandOf returns the name of a statement's command, "" = unknown.
func commandOf(s *syntax.Stmt) string {
	if call, ok := s.Cmd.(*syntax.CallExpr); ok && len(call.Args) > 0 {
		return literal(call.Args[0])
	}
	return ""
}

// plain returns a word without its quotes. It returns false if the shell expands the word.
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

// literal returns a plain word, "" otherwise.
func literal(w *syntax.Word) string { s, _ := plain(w); return s }

func replace(w *syntax.Word, text string) { w.Parts = []syntax.WordPart{&syntax.Lit{Value: text}} }

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

// maskParts masks the constant parts of a word that the shell expands. Parts after a variable in a temporary folder, as
// in $TMPDIR/dask-12 or /tmp/$USER-12, are masked as if the path were written out.
func (r *reader) maskParts(w *syntax.Word) {
	path := "" // the word so far, if it is in a temporary folder
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
			return false // shell reads the commands within
		}
		return true
	})
}

// temporary are variables that hold a temporary folder.
var temporary = set("TMPDIR TMP TEMP TEMPDIR SLURM_TMPDIR")

// leading returns the beginning of a word, for path: its constant beginning, or the value of the variable there, "./"
// if this is the working directory, "" = unknown.
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

// here are variables with the folder of submission, or a file in it.
var here = set("PWD OLDPWD SLURM_SUBMIT_DIR BASH_SOURCE")

// redirections removes the redirections of output, unless a later command may read the file, and reads those of input.
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

// written reads a here document as a shell script, if a shell reads it or it is written to a .sh file.
func (r *reader) written(s *syntax.Stmt, src []byte) {
	isScript := shells[base(commandOf(s))]
	for _, d := range s.Redirs {
		isScript = isScript || d.Op == syntax.RdrOut && d.Word != nil && strings.HasSuffix(r.ending(d.Word), ".sh")
	}
	for _, d := range s.Redirs {
		if d.Hdoc == nil || !isScript {
			continue
		}
		from := min(int(d.Hdoc.Pos().Offset()), len(src))
		to := min(int(d.Hdoc.End().Offset()), len(src))
		if text, ok := r.within(src[from:to]); ok {
			replace(d.Hdoc, text+"\n")
		}
	}
}

func (r *reader) within(src []byte) (text string, ok bool) {
	if r.nested >= maxNested {
		return "", false
	}
	r.nested++
	defer func() { r.nested-- }()
	return r.shell(src)
}

func (r *reader) ending(w *syntax.Word) string {
	if lit, ok := w.Parts[len(w.Parts)-1].(*syntax.Lit); ok {
		return lit.Value
	}
	return literal(w)
}

// writes are commands that only produce output; tools are other commands that are never a job's program; quiet are
// commands with arguments that are not the job's input.
var (
	writes = set("echo printf cat sed awk gawk head tail sort cut tr envsubst m4 jq yq tee")
	tools  = set("cp mv ln rsync scp tar gzip gunzip unzip grep find xargs diff md5sum wget curl git pip pip3 source .")
	quiet  = set("[ [[ : true false test cd pushd popd module ml export mkdir rm rmdir ulimit date hostname set unset " +
		"nvidia-smi sleep wait exit return trap touch kill chmod umask shopt conda mamba micromamba deactivate activate ls " +
		"pwd which type whoami id uname nproc free df lscpu lspci env printenv sacct expr shuf bc squeue scontrol sstat " +
		"eval read let local basename dirname seq break continue shift times hash alias command builtin dcgmi nvcc " +
		"rocm-smi spack sbcast")
)

// unknown stands for the expanded rest of a word.
const unknown = "$"

// call reads a command. top: the command is part of the script's main sequence.
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
				words[i] = p // the variable's name is the best name for a program
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
		case i == own.program && own.means == shellCode && known[i]: // sh -c CODE
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

func (r *reader) maskWord(w *syntax.Word, text string, known bool) {
	if !known {
		r.maskParts(w)
	} else if m := r.named(text, naming{}); m != text {
		replace(w, m)
	}
}

// launch masks parts of a launcher's own word: a port, an address, a date.
func (r *reader) launch(w *syntax.Word, words []string, i int) {
	name, value, ok := strings.Cut(words[i], "=")
	if !ok && i > 0 && strings.HasPrefix(words[i-1], "-") {
		name = words[i-1]
		value = words[i]
	}
	means, why := meaningOf(name, false)
	if value != "" && (means == where || means == masked) && name != words[i] {
		replace(w, strings.TrimSuffix(words[i], value)+r.mask(name+" "+value, why))
		return
	}
	r.maskWord(w, words[i], true)
}

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

// path records a word that may be a path. file: any word but a number or option is a path.
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

// lead returns a word for path: the whole word, or its beginning if the shell expands it.
func (r *reader) lead(w *syntax.Word) string {
	if s, ok := plain(w); ok {
		return s
	}
	return r.leading(w)
}

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

// argumentList is a position in a list of arguments.
type argumentList struct {
	option string // directly before the position, "" = none
	last   string // the last option
	words  int    // the number of words so far that are neither options nor their values
}

// inArguments is the treatment of names in arguments.
var inArguments = naming{sizes: true, row: true, files: true}

// argument returns one argument with sizes marked and parts masked.
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
		at.option = w
		at.last = w
		return w
	}
	if !dashed {
		at.words++
	}
	if at.last == "--wait-for-files" && !dashed {
		return r.mask(w, "Snakemake's rule and wildcards say this")
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

// input records an option's value as a path, unless it is for results.
func (r *reader) input(option, value string, file bool) {
	if means, _ := meaningOf(option, false); means != output {
		r.path(value, file)
	}
}

func base(s string) string {
	if b := path.Base(s); b != "." && b != "/" && b != ".." {
		return b
	}
	return ""
}
