package main

import (
	"encoding"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/slurmbridge/doctor"
	"github.com/slurmbridge/slurmbridge/slurmbridge/httpapi"
	"github.com/slurmbridge/slurmbridge/slurmbridge/journal"
	"github.com/slurmbridge/slurmbridge/slurmbridge/profile/store"
	"github.com/slurmbridge/slurmbridge/slurmbridge/receipt"
	"github.com/slurmbridge/slurmbridge/slurmbridge/usage"
)

// printed is what --json and /v1 give to programs.
var printed = []struct {
	asked string
	of    any
}{
	{"`slurmbridge status --json`, `GET /v1/status`", httpapi.Report{}},
	{"`slurmbridge why --json JOB`, `GET /v1/why/JOB`", journal.Story{}},
	{"`slurmbridge plan --json`, `GET /v1/plan`", httpapi.PlanReport{}},
	{"`GET /v1/groups`, a list of", journal.Grouped{}},
	{"`slurmbridge usage --json`, `GET /v1/usage`; of one's own jobs `GET /v1/usage/me`", usage.Report{}},
	{"`slurmbridge usage --idle --json`, `GET /v1/idle`", httpapi.IdleReport{}},
	{"`slurmbridge profiles list --json`, `GET /v1/profiles`, a list of", store.Listed{}},
	{"`slurmbridge profiles show --json APP`", shown{}},
	{"`GET /v1/memory/JOB`, for prologs", httpapi.MemoryReport{}},
	{"`slurmbridge receipt --json`", receipt.Receipt{}},
	{"`slurmbridge notify --json`, a list of", sent{}},
	{"`slurmbridge doctor --json`: `exit`, its exit status, and `findings`, a list of", doctor.Finding{}},
}

// Names in what --json and /v1 give to programs are of one style, and none is Go's own.
func TestNamesInJSON(t *testing.T) {
	style := regexp.MustCompile(`^[a-z][a-z0-9_]*$`)
	seen, n := map[reflect.Type]bool{}, 0
	var walk func(of reflect.Type, path string)
	walk = func(of reflect.Type, path string) {
		switch of.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
			walk(of.Elem(), path)
			return
		case reflect.Struct:
		default:
			return
		}
		text := reflect.TypeFor[encoding.TextMarshaler]()
		if seen[of] || of.Implements(text) || reflect.PointerTo(of).Implements(text) {
			return // shown as a text
		}
		seen[of] = true
		for i := range of.NumField() {
			f := of.Field(i)
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			switch {
			case !f.IsExported() && !f.Anonymous, name == "-":
				continue
			case f.Anonymous && name == "":
			case !style.MatchString(name):
				t.Errorf("%s: %s.%s is %q", path, of, f.Name, name)
			}
			n++
			walk(f.Type, path+"."+name)
		}
	}
	for _, a := range printed {
		walk(reflect.TypeOf(a.of), reflect.TypeOf(a.of).String())
	}
	if n < 150 {
		t.Errorf("only %d fields were seen", n)
	}
}

const fieldsPage = "../../../contrib/doc/json.md"

// The page on JSON has each object and each field, with what its value is. What a field means is read from the code
// where SLURMBRIDGE_WRITE_JSON has this test write the page.
func TestPageOfTheFieldsInJSON(t *testing.T) {
	file := string(must.Get(os.ReadFile(fieldsPage))(t))
	head, _, _ := strings.Cut(file, "\n## ")
	p := &fieldPage{comments: map[string]map[string]string{}}
	p.b.WriteString(head)
	for _, a := range printed {
		fmt.Fprintf(&p.b, "\n## %s\n", a.asked)
		p.object(t, reflect.TypeOf(a.of))
	}
	for len(p.later) > 0 {
		next := p.later[0]
		p.later = p.later[1:]
		fmt.Fprintf(&p.b, "\n## %s\n", p.title(next))
		p.object(t, next)
	}
	if os.Getenv("SLURMBRIDGE_WRITE_JSON") != "" {
		must.OK(t, os.WriteFile(fieldsPage, []byte(p.b.String()), 0o644))
		return
	}
	if diff := cmp.Diff(named(p.b.String()), named(file)); diff != "" {
		t.Errorf("SLURMBRIDGE_WRITE_JSON=1 writes the page anew (-want +got):\n%s", diff)
	}
}

// named are the objects and fields of a page, without their meaning.
func named(page string) []string {
	joined := strings.ReplaceAll(page, "\n  ", " ")
	return regexp.MustCompile("(?m)^(?:## .*|- `[^`]*`[^:\n]*)").FindAllString(joined, -1)
}

// fieldPage is the page while it is written: the objects that are named and still to be shown, and packages' comments.
type fieldPage struct {
	b        strings.Builder
	named    []reflect.Type
	later    []reflect.Type
	comments map[string]map[string]string // by package, by "Type.Field"
}

// title is what an object is called: by its type, with its package's name where two are called alike.
func (p *fieldPage) title(of reflect.Type) string { return strings.ToLower(of.String()) }

// object lists the fields of a struct.
func (p *fieldPage) object(t *testing.T, of reflect.Type) {
	t.Helper()
	p.b.WriteString("\n")
	p.fields(t, of)
}

func (p *fieldPage) fields(t *testing.T, of reflect.Type) {
	t.Helper()
	said := p.commentsOf(t, of.PkgPath())
	for i := range of.NumField() {
		f := of.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case !f.IsExported() && !f.Anonymous, name == "-":
			continue
		case f.Anonymous && name == "":
			p.fields(t, f.Type)
			continue
		}
		kind := p.kind(f.Type)
		if strings.Contains(options, "omitempty") || strings.Contains(options, "omitzero") {
			kind += ", may be left out"
		}
		line := fmt.Sprintf("- `%s`, %s", name, kind)
		if text := forPrograms(of, f.Name, said[of.Name()+"."+f.Name]); text != "" {
			line += ": " + text
		}
		p.b.WriteString(wrapped(line))
	}
}

// references are what a comment says to readers of the code alone.
var references = regexp.MustCompile(`(?:[;,] |^| \()see (?:\w+\.)?\w*[A-Z.]\w*(?:\.\w+)*(?:, \w+)*\)?| \(\w+\.[A-Z][\w.]*\)`)

// forPrograms is what a comment says of a field, with the names of fields that programs see.
func forPrograms(of reflect.Type, field, text string) string {
	for _, said := range []string{" is ", " are ", ": ", " "} {
		text = strings.TrimPrefix(text, field+said)
	}
	text = references.ReplaceAllString(text, "")
	text = strings.NewReplacer("*", "\\*", "_", "\\_", "|", "\\|", "<", "\\<").Replace(text)
	for i := range of.NumField() {
		f := of.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name != "" && name != "-" && !slices.Contains([]string{"Slurm", "GPU", "GPUs", "MPS", "App"}, f.Name) {
			text = regexp.MustCompile(`\b`+f.Name+`\b`).ReplaceAllString(text, "`"+name+"`")
		}
	}
	return strings.TrimPrefix(text, "and ")
}

// wrapped is an item of a list in lines of 120 columns.
func wrapped(item string) string {
	var b strings.Builder
	width := 0
	for i, word := range strings.Fields(item) {
		n := len([]rune(word))
		switch {
		case i > 0 && width+1+n > 118:
			b.WriteString("\n  ")
			width = 2
		case i > 0:
			b.WriteString(" ")
			width++
		}
		b.WriteString(word)
		width += n
	}
	return b.String() + "\n"
}

// kind says what a field's value is, and notes the object that it names.
func (p *fieldPage) kind(of reflect.Type) string {
	text := reflect.TypeFor[encoding.TextMarshaler]()
	switch {
	case of == reflect.TypeFor[time.Time]():
		return "time"
	case of.Implements(text), reflect.PointerTo(of).Implements(text):
		return "text"
	}
	switch of.Kind() {
	case reflect.Pointer:
		return p.kind(of.Elem())
	case reflect.Slice, reflect.Array:
		return "list of " + p.kind(of.Elem())
	case reflect.Map:
		return "object of " + p.kind(of.Elem()) + " by " + p.kind(of.Key())
	case reflect.Struct:
		if !slices.Contains(p.named, of) {
			p.named, p.later = append(p.named, of), append(p.later, of)
		}
		return "`" + p.title(of) + "`"
	case reflect.String:
		return "text"
	case reflect.Bool:
		return "true or false"
	}
	return "number"
}

// commentsOf are the comments of the fields of a package's types.
func (p *fieldPage) commentsOf(t *testing.T, path string) map[string]string {
	t.Helper()
	if said, is := p.comments[path]; is {
		return said
	}
	said := map[string]string{}
	p.comments[path] = said
	dir := "."
	if _, inside, is := strings.Cut(path, "github.com/slurmbridge/slurmbridge/"); is && path != "main" {
		dir = "../../../" + inside
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	must.OK(t, err)
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		parsed := must.Get(parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments))(t)
		ast.Inspect(parsed, func(n ast.Node) bool {
			spec, is := n.(*ast.TypeSpec)
			if !is {
				return true
			}
			if body, is := spec.Type.(*ast.StructType); is {
				for _, f := range body.Fields.List {
					text := strings.Join(strings.Fields(f.Doc.Text()+" "+f.Comment.Text()), " ")
					for _, id := range f.Names {
						said[spec.Name.Name+"."+id.Name] = text
					}
				}
			}
			return true
		})
	}
	return said
}
