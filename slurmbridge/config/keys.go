package config

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/slurmbridge/slurmbridge/etc"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// setting is one line of etc/slurmbridge.yaml. Its field of Config has the same name, without the underscores.
type setting struct {
	name  string
	doc   string // the comment above it
	value any    // the default
}

// settings are the lines of etc/slurmbridge.yaml except adopt and gpu_types, in its order.
var settings = sync.OnceValue(func() []setting {
	var file yaml.Node
	if err := yaml.NewDecoder(bytes.NewReader(etc.Settings)).Decode(&file); err != nil {
		panic("config: " + err.Error()) // a mistake in the file, which a test finds
	}
	var out []setting
	for pair := range slices.Chunk(file.Content[0].Content, 2) {
		s := setting{name: pair[0].Value, doc: strings.Join(strings.Fields(strings.ReplaceAll(pair[0].HeadComment, "#", "")), " ")}
		if err := pair[1].Decode(&s.value); err != nil {
			panic("config: " + s.name + ": " + err.Error())
		}
		if s.name != adoptKey && s.name != gpuTypesKey {
			out = append(out, s)
		}
	}
	return out
})

// checks hold what the values of settings must be; any value of its type is right for a setting without one.
var checks = map[string]func(any) error{
	"slurm_conf":     pathOrNone,
	"bin_dir":        pathOrNone,
	"mode":           oneOf("active", "shadow"),
	"policy":         word,
	"objective":      oneOf(policy.Objectives()...),
	"model":          pathOrNone,
	"window":         intIn(1, 12),
	"max_group":      intIn(1, 16),
	"leave_room":     oneOf("auto", "yes", "no"),
	"lease":          durationIn(20*time.Second, time.Hour),
	"poll":           durationIn(time.Second, 10*time.Minute),
	"lua":            oneOf("auto", "yes", "no"),
	"name":           partitionOrNone,
	"gate_file":      path,
	"gate_partition": partitionOrNone,
	"wake_file":      path,
	"memory_margin":  floatIn(0.01, 0.5),
	"grace":          floatIn(0.01, 100),
	"max_delay":      durationIn(time.Second, 24*time.Hour),
	"max_slowdown":   zeroOr(floatIn(1, 100)),
	"trust":          floatIn(0.1, 10),
	"try_memory":     intIn(0, 1_000_000),
	"idle_after":     durationIn(10*time.Minute, 720*time.Hour),
	"host_share":     oneOf("divide", "keep"),
	"adopt_mode":     oneOf("active", "shadow"),
	"adopt_percent":  intIn(0, 100),
	"adopt_charge":   oneOf("shares", "nothing"),
	"adopt_delay":    durationIn(time.Second, time.Hour),
	"adopt_opt_out":  pathOrNone,

	"app_names":                namedApps,
	"interactive_names":        patterns,
	"interactive_memory":       intIn(256, 1_000_000),
	"interactive_max_slowdown": floatIn(1, 100),

	"database":     path,
	"database_mib": intIn(64, 1_000_000),
	"listen":       address,
	"web_config":   pathOrNone,
	"munge_socket": pathOrNone,
	"key_file":     pathOrNone,
	"log_level":    oneOf("debug", "info", "warn", "error"),
}

func names() []string {
	out := make([]string, 0, len(settings())+1)
	for _, s := range settings() {
		out = append(out, s.name)
	}
	return append(out, adoptKey, gpuTypesKey)
}

// Check returns what is wrong with a value of a setting, nil = nothing. The error continues
// a line that begins with the setting's name, which must exist.
func Check(name string, value any) error {
	s := setting{name: name}
	return s.set(&Config{}, value)
}

func (s *setting) field(c *Config) any {
	name := strings.ReplaceAll(s.name, "_", "")
	return reflect.ValueOf(c).Elem().FieldByNameFunc(func(f string) bool { return strings.EqualFold(f, name) }).Addr().Interface()
}

// set puts a value that came from YAML, a variable or a flag into c. The error
// continues a line that begins with the setting's name.
func (s *setting) set(c *Config, value any) error {
	return target{s.field(c), checks[s.name]}.set(value)
}

// target is where a value goes, and what it must be (nil = any value of its type is right).
type target struct {
	field any
	check func(any) error
}

func (t target) set(value any) error {
	if err := assign(t.field, value); err != nil || t.check == nil {
		return err
	}
	return t.check(t.field)
}

// setBlock puts the fields of a block into their targets. at, and for a field's value at+of, begin an error.
func setBlock(at, of string, fields map[string]any, targets map[string]target) error {
	for _, f := range slices.Sorted(maps.Keys(fields)) {
		t, ok := targets[f]
		if !ok {
			return fmt.Errorf("%s: there is no setting %q%s", at, f, meant(f, slices.Sorted(maps.Keys(targets))))
		}
		if err := t.set(fields[f]); err != nil {
			return fmt.Errorf("%s%s%s %w", at, of, f, err)
		}
	}
	return nil
}

// flag adds a flag that sets *p to fs. *p is its default.
func flag(fs *pflag.FlagSet, p any, name, doc string) {
	switch p := p.(type) {
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

// assign sets *p to a value as YAML, a variable or a flag has it.
func assign(p, value any) error {
	text, isText := value.(string)
	want := "a whole number"
	switch p := p.(type) {
	case *[]string:
		return assignList(p, value)
	case *string:
		if b, is := value.(bool); is { // a file that says `lua: true` means yes
			text, isText = map[bool]string{true: "yes", false: "no"}[b], true
		}
		if !isText {
			return mismatch(value, "text")
		}
		*p = text
		return nil
	case *bool:
		want = "true or false"
		if word, ok := map[string]string{"yes": "true", "no": "false"}[strings.ToLower(text)]; ok {
			value = word
		}
	case *float64:
		want = "a number"
	case *time.Duration:
		want = "a duration such as 60s, 5m or 1h30m"
	}
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	flag(fs, p, "value", "")
	if fs.Set("value", fmt.Sprint(value)) != nil {
		return mismatch(value, want)
	}
	return nil
}

func assignList(p *[]string, value any) error {
	var in []string
	switch v := value.(type) {
	case []string:
		in = v
	case string:
		in = strings.Split(v, ",")
	case []any:
		for _, e := range v {
			s, ok := e.(string)
			if !ok {
				return mismatch(e, "text in each place of the list")
			}
			in = append(in, s)
		}
	default:
		return mismatch(value, "a list of names")
	}
	for i := range in {
		in[i] = strings.TrimSpace(in[i])
	}
	*p = slices.DeleteFunc(slices.Clone(in), func(s string) bool { return s == "" })
	return nil
}

func mismatch(value any, want string) error {
	return fmt.Errorf("is %s, but takes %s", show(value), want)
}

// show prints a value as the file has it, cut where it is long.
func show(v any) string {
	if s, ok := v.(string); ok {
		return fmt.Sprintf("%.60q", s)
	}
	return fmt.Sprintf("%.60s", fmt.Sprint(v))
}

func oneOf(words ...string) func(any) error {
	return func(p any) error {
		s, last := *p.(*string), len(words)-1
		if slices.Contains(words, s) {
			return nil
		}
		return fmt.Errorf("is %s, but takes %s or %s", show(s), strings.Join(words[:last], ", "), words[last])
	}
}

var wordPattern = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,63}$`)

func word(p any) error {
	if s := *p.(*string); !wordPattern.MatchString(s) {
		return fmt.Errorf("is %s, but takes a name of small letters, digits, '-' and '_'", show(s))
	}
	return nil
}

// partitionPattern is an optional partition's name.
var partitionPattern = regexp.MustCompile(`^[A-Za-z0-9_.+-]*$`)

func partitionOrNone(p any) error {
	if s := *p.(*string); !partitionPattern.MatchString(s) {
		return fmt.Errorf("is %s, but takes a partition's name", show(s))
	}
	return nil
}

// namedApps accepts PATTERN=NAME.
func namedApps(p any) error {
	for _, s := range *p.(*[]string) {
		if _, err := job.ParseAppName(s); err != nil {
			return fmt.Errorf("has %s, but takes PATTERN=NAME, for example nf-train*=train: %w", show(s), err)
		}
	}
	return nil
}

func patterns(p any) error {
	for _, s := range *p.(*[]string) {
		if _, err := job.MatchName(s, ""); err != nil {
			return fmt.Errorf("has %s, but takes patterns such as jupyter*: %w", show(s), err)
		}
	}
	return nil
}

func path(p any) error {
	if s := *p.(*string); !filepath.IsAbs(s) {
		return fmt.Errorf("is %s, but takes a path from the root, such as /run/slurmbridge", show(s))
	}
	return nil
}

func pathOrNone(p any) error {
	if *p.(*string) == "" {
		return nil
	}
	return path(p)
}

func address(p any) error {
	s := *p.(*string)
	if s == "" {
		return nil
	}
	_, port, err := net.SplitHostPort(s)
	if err == nil {
		var n uint64
		if n, err = strconv.ParseUint(port, 10, 16); err == nil && n == 0 && port != "0" {
			err = errors.New("no port")
		}
	}
	if err != nil {
		return fmt.Errorf("is %s, but takes host:port or :port, such as :9797", show(s))
	}
	return nil
}

func intIn(lo, hi int) func(any) error {
	return func(p any) error {
		if v := *p.(*int); v < lo || v > hi {
			return fmt.Errorf("is %d, but takes %d to %d", v, lo, hi)
		}
		return nil
	}
}

func floatIn(lo, hi float64) func(any) error {
	return func(p any) error {
		// Written so that NaN is refused.
		if v := *p.(*float64); !(v >= lo && v <= hi) {
			return fmt.Errorf("is %g, but takes %g to %g", v, lo, hi)
		}
		return nil
	}
}

func zeroOr(check func(any) error) func(any) error {
	return func(p any) error {
		if *p.(*float64) == 0 {
			return nil
		}
		if err := check(p); err != nil {
			return fmt.Errorf("%w, or 0", err)
		}
		return nil
	}
}

func durationIn(lo, hi time.Duration) func(any) error {
	return func(p any) error {
		if v := *p.(*time.Duration); v < lo || v > hi {
			return fmt.Errorf("is %s, but takes %s to %s", text(v), text(lo), text(hi))
		}
		return nil
	}
}

// text prints a duration without its zeros: 5m, not 5m0s.
func text(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
