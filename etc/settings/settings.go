// Package settings reads a program's settings into a struct: the defaults of its file in etc, then a file, then what
// overrules it. The fields' tags name the settings (mapstructure) and say what they take (is, see rules.go).
package settings

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// Source is where settings come from.
type Source struct {
	// Defaults is the text of etc/NAME.yaml: each setting with its default, below a comment that says what it means.
	Defaults []byte
	Rules    map[string]Rule // by the name in tags, besides those for every program
	// Overrule returns the value that overrules the file's, and where it was written; nil = nothing does. See package
	// overrule.
	Overrule func(key string) (value any, place string)
}

// Places says where each setting that isn't its default was written: "FILE:12: lease", "SLURMBRIDGE_LEASE", "--lease".
type Places map[string]string

// Load reads a file ("" = none) into *into. Each mistake is an error of one line that names the place, the setting and
// what it takes; the setting keeps its default.
func Load[T any](file string, into *T, s Source) (Places, error) {
	fields, places := fieldsOf(reflect.ValueOf(into).Elem()), Places{}
	r := &reading{Source: s}
	for _, d := range Documented(s.Defaults) {
		r.decode(d.value, *find(fields, d.Name), d.Name)
	}
	if r.wrong != nil {
		panic(errors.Join(r.wrong...)) // a mistake in etc, which a test finds
	}
	r.file = file
	written, err := r.parse()
	if err != nil {
		return places, fmt.Errorf("%s: %s", file, strings.Join(strings.Fields(err.Error()), " "))
	}
	r.unknown(written, fields, "")
	for _, f := range fields {
		key, n := f.name, get(written, f.name)
		r.place = ""
		if s.Overrule != nil {
			if value, place := s.Overrule(key); value != nil {
				n, r.place = new(yaml.Node), place
				_ = n.Encode(value) // a text, a number or a list
			}
		}
		if n == nil || n.Tag == "!!null" {
			continue
		}
		was, wrong := reflect.New(f.Type()).Elem(), len(r.wrong)
		was.Set(f.Value)
		f.SetZero()
		if r.decode(n, f, key); len(r.wrong) > wrong {
			f.Set(was)
			continue
		}
		places[key] = r.at(n, key)
	}
	return places, errors.Join(r.wrong...)
}

// reading is a file while it is read.
type reading struct {
	Source
	file  string
	place string // of what overrules the file; "" = the file counts
	wrong []error
}

// parse returns the file's settings.
func (r *reading) parse() (*yaml.Node, error) {
	var doc yaml.Node
	if r.file == "" {
		return &doc, nil
	}
	text, err := os.ReadFile(r.file)
	if err != nil {
		return &doc, err
	}
	documents := yaml.NewDecoder(bytes.NewReader(text))
	switch err := documents.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return &doc, nil // it is empty
	case err != nil:
		return &doc, err
	case !errors.Is(documents.Decode(new(yaml.Node)), io.EOF):
		return &doc, errDocuments
	}
	return doc.Content[0], doc.Decode(&map[string]any{}) // which finds what is given twice
}

// errDocuments: a line "---" ends the settings, and what follows it would count for nothing.
var errDocuments = errors.New("it has several documents: there may be no line --- between settings")

// at is the place of a setting.
func (r *reading) at(n *yaml.Node, path string) string {
	if r.file == "" || r.place != "" {
		return cmp.Or(r.place, path)
	}
	return fmt.Sprintf("%s:%d: %s", r.file, n.Line, path)
}

// fail notes a mistake; text continues a line that begins with the setting's name.
func (r *reading) fail(n *yaml.Node, path, text string) {
	r.wrong = append(r.wrong, fmt.Errorf("%s %s", r.at(n, path), text))
}

// unknown notes the settings of a block that there aren't.
func (r *reading) unknown(n *yaml.Node, fields []field, path string) {
	for i := 0; i < len(n.Content)-1; i += 2 {
		name := n.Content[i]
		if find(fields, name.Value) != nil {
			continue
		}
		what := meant(name.Value, slices.Sorted(slices.Values(namesOf(fields))))
		if path != "" {
			path += ": "
		}
		r.wrong = append(r.wrong, fmt.Errorf("%sthere is no setting %q%s", r.at(name, path), name.Value, what))
	}
}

// get returns the value of a key, nil = it isn't there.
func get(n *yaml.Node, key string) *yaml.Node {
	for i := 0; i < len(n.Content)-1; i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i+1]
		}
	}
	return nil
}

// decode puts a value into a field, or notes what is wrong with it.
func (r *reading) decode(n *yaml.Node, f field, path string) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	takes := func(what string) { r.fail(n, path, "is "+show(n)+", but takes "+what) }
	below := func(n *yaml.Node, v reflect.Value, name string) { r.decode(n, field{Value: v}, path+"."+name) }
	switch {
	case f.Kind() == reflect.Pointer:
		f.Set(reflect.New(f.Type().Elem()))
		r.decode(n, field{f.name, f.Elem(), f.is}, path)
	case f.Kind() == reflect.Struct && n.Kind == yaml.MappingNode:
		fields := fieldsOf(f.Value)
		r.unknown(n, fields, path)
		for _, part := range fields {
			if v := get(n, part.name); v != nil {
				r.decode(v, part, path+"."+part.name)
			}
		}
	case f.Kind() == reflect.Struct:
		takes("a block of " + strings.Join(namesOf(fieldsOf(f.Value)), ", "))
	case f.Kind() == reflect.Map && n.Kind == yaml.MappingNode:
		f.Set(reflect.MakeMap(f.Type()))
		for pair := range slices.Chunk(n.Content, 2) {
			v := reflect.New(f.Type().Elem()).Elem()
			below(pair[1], v, pair[0].Value)
			f.SetMapIndex(reflect.ValueOf(pair[0].Value), v)
		}
	case f.Kind() == reflect.Map:
		takes("a block with a name a line, each with a block of its own")
	case f.Type() == reflect.TypeFor[[]string]():
		texts := strings.Split(n.Value, ",")
		switch {
		case n.Kind == yaml.SequenceNode:
			texts = make([]string, len(n.Content))
			for i, e := range n.Content {
				below(e, reflect.ValueOf(texts).Index(i), strconv.Itoa(i+1))
			}
		case n.Tag != "!!str":
			takes("a list of names")
			return
		}
		for i := range texts {
			texts[i] = strings.TrimSpace(texts[i])
		}
		f.Set(reflect.ValueOf(slices.DeleteFunc(texts, func(s string) bool { return s == "" })))
		r.obey(n, f, path)
	case f.Kind() == reflect.Slice && n.Kind == yaml.SequenceNode:
		f.Set(reflect.MakeSlice(f.Type(), len(n.Content), len(n.Content)))
		for i, e := range n.Content {
			below(e, f.Index(i), strconv.Itoa(i+1))
		}
	case f.Kind() == reflect.Slice:
		takes("a list of blocks")
	default:
		if what := scalar(n, f.Value); what != "" {
			takes(what)
			return
		}
		r.obey(n, f, path)
	}
}

// scalar puts one value into a field, or returns what that takes.
func scalar(n *yaml.Node, f reflect.Value) string {
	plain := n.Kind == yaml.ScalarNode
	switch p := f.Addr().Interface().(type) {
	case *string:
		*p = n.Value
		if !plain || n.Tag != "!!str" {
			return "text"
		}
	case *bool:
		*p = n.Value == "true" || n.Value == "yes"
		if !plain || !*p && n.Value != "false" && n.Value != "no" {
			return "true or false"
		}
	case *int:
		var err error
		if *p, err = strconv.Atoi(n.Value); err != nil || !plain {
			return "a whole number"
		}
	case *float64:
		var err error
		if *p, err = strconv.ParseFloat(n.Value, 64); err != nil || !plain {
			return "a number"
		}
	case *time.Duration:
		var err error
		if *p, err = time.ParseDuration(n.Value); err != nil || !plain {
			return "a duration such as 60s, 5m or 1h30m"
		}
	}
	return ""
}

// show prints a value as the file has it, cut where it is long.
func show(n *yaml.Node) string {
	if n.Tag == "!!str" {
		return fmt.Sprintf("%.60q", n.Value)
	}
	var v any = n.Value
	if n.Kind != yaml.ScalarNode {
		_ = n.Decode(&v) // it was read before
	}
	return fmt.Sprintf("%.60s", fmt.Sprint(v))
}

// field is one of a struct's, with its setting's name and what that takes.
type field struct {
	name string
	reflect.Value
	is string
}

// fieldsOf are a struct's fields that are settings, in their order.
func fieldsOf(v reflect.Value) (out []field) {
	for i := range v.NumField() {
		if t := v.Type().Field(i).Tag; t.Get("mapstructure") != "" {
			out = append(out, field{t.Get("mapstructure"), v.Field(i), t.Get("is")})
		}
	}
	return out
}

func find(fields []field, name string) *field {
	if i := slices.IndexFunc(fields, func(f field) bool { return f.name == name }); i >= 0 {
		return &fields[i]
	}
	return nil
}

func namesOf(fields []field) (out []string) {
	for _, f := range fields {
		out = append(out, f.name)
	}
	return out
}

// Setting is one of etc/NAME.yaml.
type Setting struct {
	Name  string
	Doc   string // the comment above it
	value *yaml.Node
}

// Documented are the settings of etc/NAME.yaml, in its order.
func Documented(text []byte) []Setting {
	var file yaml.Node
	if err := yaml.Unmarshal(text, &file); err != nil {
		panic("settings: " + err.Error()) // a mistake in etc, which a test finds
	}
	var out []Setting
	for pair := range slices.Chunk(file.Content[0].Content, 2) {
		doc := strings.Join(strings.Fields(strings.ReplaceAll(pair[0].HeadComment, "#", "")), " ")
		out = append(out, Setting{pair[0].Value, doc, pair[1]})
	}
	return out
}

// Flags adds a flag for each setting that has one value or a list to fs, --max-delay for max_delay.
func Flags[T any](fs *pflag.FlagSet, from Source) {
	var c T
	_, _ = Load("", &c, Source{Defaults: from.Defaults, Rules: from.Rules}) // nothing is read that may be wrong
	fields := fieldsOf(reflect.ValueOf(&c).Elem())
	for _, s := range Documented(from.Defaults) {
		doc, _, _ := strings.Cut(s.Doc, ". ")
		name, doc := strings.ReplaceAll(s.Name, "_", "-"), strings.TrimSuffix(doc, ".")
		switch p := find(fields, s.Name).Addr().Interface().(type) {
		case *string:
			fs.StringVar(p, name, *p, doc)
		case *[]string:
			fs.StringSliceVar(p, name, *p, doc)
		case *bool:
			fs.BoolVar(p, name, *p, doc)
		case *int:
			fs.IntVar(p, name, *p, doc)
		case *float64:
			fs.Float64Var(p, name, *p, doc)
		case *time.Duration:
			fs.DurationVar(p, name, *p, doc)
		}
	}
}

// Check returns what is wrong with a value of a setting of T, nil = nothing. The error continues a line that begins
// with the setting's name.
func Check[T any](name string, value any) error {
	var c T
	n, r := new(yaml.Node), &reading{}
	_ = n.Encode(value)
	if r.decode(n, *find(fieldsOf(reflect.ValueOf(&c).Elem()), name), ""); r.wrong == nil {
		return nil
	}
	return errors.New(strings.TrimSpace(r.wrong[0].Error()))
}
