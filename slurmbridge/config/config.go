// Package config reads the bridge's settings: a YAML file, then SLURMBRIDGE_*
// variables, then flags, each overruling the one before. etc/slurmbridge.yaml
// documents every setting and its default, and keys.go checks the values.
package config

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"github.com/spf13/viper"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/adopt"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// DefaultFile is read when no file is named; it may be absent.
const DefaultFile = "/etc/slurmbridge/slurmbridge.yaml"

// envPrefix starts the name of every variable: SLURMBRIDGE_LEASE sets lease.
const envPrefix = "SLURMBRIDGE"

// Config holds the settings. etc/slurmbridge.yaml says what each means.
type Config struct {
	SlurmConf string
	BinDir    string

	Mode     string
	Policy   string
	Window   int
	MaxGroup int
	Join     bool
	// LeaveRoom is auto, yes or no.
	LeaveRoom string
	Model     string
	Objective string

	Lease time.Duration
	Poll  time.Duration
	Lua   string
	// Name is this daemon's, "" = the host's.
	Name     string
	GateFile string
	// GatePartition is the gate's, "" = it is in each with a node that shares.
	GatePartition string
	WakeFile      string

	MemoryMargin float64
	Grace        float64
	MaxDelay     time.Duration
	MaxSlowdown  float64
	RetryAlone   bool
	IdleAfter    time.Duration
	IdleComment  bool
	ExtendLimit  bool
	// ExtendPastMaxTime: also beyond the partitions' MaxTime.
	ExtendPastMaxTime bool
	Trust             float64
	TryMemory         int // MiB

	AppNames []string // PATTERN=NAME; see job.AppName
	// Which jobs are interactive sessions, and what they get; see job.Sessions. Memory is in MiB.
	InteractiveNames, InteractivePartitions []string
	InteractiveMemory                       int
	InteractiveMaxSlowdown                  float64

	IncludePartitions []string
	ExcludePartitions []string
	SharersOnly       []string // partitions
	HostShare         string
	// HandShares names users, and partitions as partition:NAME.
	HandShares []string

	Database    string
	DatabaseMiB int
	Listen      string
	WebConfig   string
	MungeSocket string
	KeyFile     string
	RecordUsers []string
	LogLevel    string

	// Adopt are the rules by which unchanged jobs share.
	Adopt        []adopt.Rule
	AdoptMode    string
	AdoptPercent int
	AdoptCharge  string
	AdoptDelay   time.Duration
	AdoptOptOut  string // a file

	// GPUTypes holds the cards of gpu_types by lower-case type; Card also knows
	// the built-in ones.
	GPUTypes map[string]rlcore.GPUSpec

	// File that was read, "" = none.
	File string
	// places holds where each setting that isn't its default was written.
	places map[string]string
}

// Where says where a setting was written, for errors that show only
// when the setting is used: "/etc/slurmbridge/slurmbridge.yaml: policy",
// "SLURMBRIDGE_POLICY", "--policy", or its bare name where it is the default.
func (c *Config) Where(key string) string {
	if w, ok := c.places[key]; ok {
		return w
	}
	return key
}

// Default returns the settings of an empty file.
func Default() *Config {
	c := &Config{GPUTypes: map[string]rlcore.GPUSpec{}}
	for _, s := range settings() {
		if err := s.set(c, s.value); err != nil {
			panic("config: default of " + s.name + " " + err.Error()) // a mistake in the file, which a test finds
		}
	}
	return c
}

// Flags adds one flag per setting to fs, --max-delay for max_delay, for a later
// Load. gpu_types has none.
func Flags(fs *pflag.FlagSet) {
	c := Default()
	for _, s := range settings() {
		first, _, _ := strings.Cut(s.doc, ". ")
		flag(fs, s.field(c), flagName(s.name), strings.TrimSuffix(first, "."))
	}
}

func flagName(key string) string { return strings.ReplaceAll(key, "_", "-") }
func envName(key string) string  { return envPrefix + "_" + strings.ToUpper(key) }

// Load reads file, the environment and flags (made by Flags; nil = none) afresh
// and returns the settings that result. It keeps nothing and changes nothing, so
// a reload that fails leaves the caller with what it had. file "" means
// DefaultFile where there is one. An error is one line that names the place and
// the setting.
func Load(file string, flags *pflag.FlagSet) (*Config, error) {
	v := viper.New()
	v.SetConfigType("yaml")
	c := Default()
	c.places = map[string]string{}
	if err := read(v, c, file); err != nil {
		return nil, err
	}
	if err := checkNames(v, c.File); err != nil {
		return nil, err
	}
	for _, k := range settings() {
		where, value := c.File+": "+k.name, v.Get(k.name)
		if s, ok := os.LookupEnv(envName(k.name)); ok && s != "" {
			where, value = envName(k.name), s
		}
		if flags != nil {
			if f := flags.Lookup(flagName(k.name)); f != nil && f.Changed {
				where, value = "--"+f.Name, f.Value.String()
				if sv, ok := f.Value.(pflag.SliceValue); ok {
					value = sv.GetSlice()
				}
			}
		}
		if value == nil {
			continue
		}
		if err := k.set(c, value); err != nil {
			return nil, fmt.Errorf("%s %w", where, err)
		}
		c.places[k.name] = where
	}
	var err error
	if c.GPUTypes, err = gpuTypes(v.Get(gpuTypesKey)); err != nil {
		return nil, fmt.Errorf("%s: %w", c.File, err)
	}
	if c.Adopt, err = adoptRules(v.Get(adoptKey)); err != nil {
		return nil, fmt.Errorf("%s: %w", c.File, err)
	}
	if c.Adopt != nil {
		c.places[adoptKey] = c.File + ": " + adoptKey
	}
	if err := c.agree(); err != nil {
		if c.File != "" {
			return nil, fmt.Errorf("%s: %w", c.File, err)
		}
		return nil, err
	}
	return c, nil
}

func read(v *viper.Viper, c *Config, file string) error {
	named := file != ""
	if !named {
		file = DefaultFile
	}
	info, err := os.Stat(file)
	switch {
	case err != nil && !named && errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("configuration can't be read: %w", err)
	case !info.Mode().IsRegular():
		return fmt.Errorf("configuration can't be read: %s is no file", file)
	case info.Mode().Perm()&0o002 != 0:
		return fmt.Errorf("%s is writable by all users: chmod o-w it", file)
	}
	f, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("configuration can't be read: %w", err)
	}
	defer f.Close()
	c.File = file
	if err := v.ReadConfig(f); err != nil {
		return fmt.Errorf("%s: %s", file, oneLine(err))
	}
	return nil
}

func oneLine(err error) string {
	s := err.Error()
	s = strings.TrimPrefix(s, "While parsing config: ")
	return strings.Join(strings.Fields(s), " ")
}

// checkNames finds the first setting that there isn't.
func checkNames(v *viper.Viper, file string) error {
	known := names()
	var unknown []string
	for _, path := range slices.Concat(slices.Collect(maps.Keys(v.AllSettings())), v.AllKeys()) { // the former lack settings without a value
		if name, _, _ := strings.Cut(path, "."); !slices.Contains(known, name) {
			unknown = append(unknown, name)
		}
	}
	if len(unknown) == 0 {
		return nil
	}
	name := slices.Min(unknown)
	if instead := gone[name]; instead != "" {
		return fmt.Errorf("%s: there is no setting %q any more: %s", file, name, instead)
	}
	return fmt.Errorf("%s: there is no setting %q%s", file, name, meant(name, known))
}

const retraining = "the bridge trains no network by itself; slurmbridge train makes one, and model names its file; remove the line"

// gone says of earlier settings what replaced them.
var gone = map[string]string{
	"max_pass_over": "grace bounds by how much sharing may delay a job, and max_delay how long a job waits next to an idle GPU; remove the line",
	"retrain":       retraining,
	"retrain_every": retraining,
	"retrain_days":  retraining,
	"retrain_runs":  retraining,
}

// agree checks what one setting alone can't show.
func (c *Config) agree() error {
	if c.Poll > c.Lease/2 {
		return fmt.Errorf("poll %s is more than half the lease of %s: the gate would open between two polls", text(c.Poll), text(c.Lease))
	}
	for _, p := range c.IncludePartitions {
		if slices.Contains(c.ExcludePartitions, p) {
			return fmt.Errorf("partition %q is both in include_partitions and in exclude_partitions", p)
		}
	}
	return nil
}

// meant suggests the known name nearest to what was written.
func meant(name string, known []string) string {
	best, at := "", min(len(name)/3+2, 4) // so many edits apart is another word
	for _, k := range known {
		if d := distance(name, k); d < at {
			best, at = k, d
		}
	}
	if best == "" {
		// A word of the name, say "partitions", may lead further.
		for _, k := range known {
			if strings.Contains(k, name) || strings.Contains(name, k) {
				best = k
				break
			}
		}
	}
	if best == "" {
		return "; the settings are " + strings.Join(known, ", ")
	}
	return fmt.Sprintf("; did you mean %q?", best)
}

// distance is Levenshtein's: the insertions, deletions and replacements that
// make b of a.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diagonal := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			diagonal, row[j] = row[j], min(row[j]+1, row[j-1]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}

// Apps are the applications that the site names by the names of jobs.
func (c *Config) Apps() []job.AppName {
	var out []job.AppName
	for _, s := range c.AppNames {
		if n, err := job.ParseAppName(s); err == nil { // they were checked
			out = append(out, n)
		}
	}
	return out
}
