// Package config reads the bridge's settings: a YAML file, then SLURMBRIDGE_* variables, then a command's flags of the
// same names, each overruling the one before. etc/slurmbridge.yaml documents every setting and its default, and the
// tags of Config check the values.
package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/slurmbridge/slurmbridge/etc"
	"github.com/slurmbridge/slurmbridge/etc/settings"
	"github.com/slurmbridge/slurmbridge/etc/settings/overrule"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/adopt"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// DefaultFile is read when no file is named; it may be absent.
const DefaultFile = "/etc/slurmbridge/slurmbridge.yaml"

// Config holds the settings. etc/slurmbridge.yaml says what each means.
type Config struct {
	SlurmConf string `mapstructure:"slurm_conf" is:"path or none"`
	BinDir    string `mapstructure:"bin_dir" is:"path or none"`

	Mode     string `mapstructure:"mode" is:"active or shadow"`
	Policy   string `mapstructure:"policy" is:"policy"`
	MaxGroup int    `mapstructure:"max_group" is:"1 to 16"`

	Lease time.Duration `mapstructure:"lease" is:"20s to 1h"`
	Poll  time.Duration `mapstructure:"poll" is:"1s to 10m"`
	// RunDir is the folder of GateFile and WakeFile.
	RunDir string `mapstructure:"run_dir" is:"path"`
	// GatePartition is the gate's, "" = it is in each with a node that shares.
	GatePartition string `mapstructure:"gate_partition" is:"name"`

	MemoryMargin float64       `mapstructure:"memory_margin" is:"0.01 to 0.5"`
	Grace        float64       `mapstructure:"grace" is:"0.01 to 100"`
	MaxDelay     time.Duration `mapstructure:"max_delay" is:"1s to 24h"`
	MaxSlowdown  float64       `mapstructure:"max_slowdown" is:"1 to 100, or 0"`
	RetryAlone   bool          `mapstructure:"retry_alone"`
	ShareUnknown bool          `mapstructure:"share_unknown_use"`
	IdleAfter    time.Duration `mapstructure:"idle_after" is:"10m to 720h"`
	MailProgram  string        `mapstructure:"mail_program" is:"path or none"`
	MailDomain   string        `mapstructure:"mail_domain" is:"domain"`
	MailTemplate string        `mapstructure:"mail_template" is:"path or none"`
	ExtendLimit  bool          `mapstructure:"extend_limit"`
	// ExtendPastMaxTime: also beyond the partitions' MaxTime.
	ExtendPastMaxTime bool `mapstructure:"extend_past_max_time"`
	TryMemory         int  `mapstructure:"try_memory" is:"0 to 1000000"` // MiB

	AppNames []string `mapstructure:"app_names" is:"named apps"` // PATTERN=NAME; see job.AppName
	// Which jobs are interactive sessions, and what they get; see job.Sessions. Memory is in MiB.
	InteractiveNames       []string `mapstructure:"interactive_names" is:"patterns"`
	InteractivePartitions  []string `mapstructure:"interactive_partitions"`
	InteractiveMemory      int      `mapstructure:"interactive_memory" is:"256 to 1000000"`
	InteractiveMaxSlowdown float64  `mapstructure:"interactive_max_slowdown" is:"1 to 100"`

	IncludePartitions []string `mapstructure:"include_partitions"`
	ExcludePartitions []string `mapstructure:"exclude_partitions"`
	SharersOnly       []string `mapstructure:"sharers_only"` // partitions
	MixedPartitions   string   `mapstructure:"mixed_partitions" is:"auto or share"`
	// HandShares names users, and partitions as partition:NAME.
	HandShares []string `mapstructure:"hand_shares"`

	Database    string `mapstructure:"database" is:"path"`
	DatabaseMiB int    `mapstructure:"database_mib" is:"64 to 1000000"`
	Listen      string `mapstructure:"listen" is:"address"`
	WebConfig   string `mapstructure:"web_config" is:"path or none"`
	// Server and ClientConfig are for the commands that ask the daemon.
	Server       string   `mapstructure:"server" is:"server"`
	ClientConfig string   `mapstructure:"client_config" is:"path or none"`
	MungeSocket  string   `mapstructure:"munge_socket" is:"path or none"`
	KeyFile      string   `mapstructure:"key_file" is:"path or none"`
	RecordUsers  []string `mapstructure:"record_users"`
	LogLevel     string   `mapstructure:"log_level" is:"debug, info, warn or error"`

	// Adopt are the rules by which unchanged jobs share.
	Adopt        []adopt.Rule  `mapstructure:"adopt"`
	AdoptMode    string        `mapstructure:"adopt_mode" is:"active or shadow"`
	AdoptPercent int           `mapstructure:"adopt_percent" is:"0 to 100"`
	AdoptDelay   time.Duration `mapstructure:"adopt_delay" is:"1s to 1h"`
	AdoptOptOut  string        `mapstructure:"adopt_opt_out" is:"path or none"` // a file

	// GPUTypes holds the cards of gpu_types by lower-case type, GPUs as they are written; Card also knows
	// the built-in ones.
	GPUTypes map[string]rlcore.GPUSpec
	GPUs     map[string]GPU `mapstructure:"gpu_types"`

	// File that was read, "" = none.
	File string
	// places holds where each setting that isn't its default was written.
	places settings.Places
}

func isPattern(s string) (bool, error) { return job.MatchName(s, "") }

// reads reports whether a parser reads a text without an error.
func reads[T any](parse func(string) (T, error)) func(string) bool {
	return func(s string) bool { _, err := parse(s); return err == nil }
}

// source is where the settings come from; flags may be nil.
func source(flags *pflag.FlagSet) settings.Source {
	return settings.Source{
		Defaults: etc.Settings, Overrule: overrule.By("SLURMBRIDGE", flags),
		Rules: map[string]settings.Rule{
			"policy": {
				Takes: "a policy's name, or the path of a trained network from the root",
				Right: regexp.MustCompile(`^([a-z][a-z0-9_-]{0,63}|/.+)$`).MatchString,
			},
			"patterns":   {Takes: "patterns such as jupyter*", Right: reads(isPattern)},
			"named apps": {Takes: "PATTERN=NAME, for example nf-train*=train", Right: reads(job.ParseAppName)},
			"rule names": ruleNames,
			"server": {
				Takes: "HOST:PORT, or https://HOST:PORT",
				Right: regexp.MustCompile(`^((https?://)?[A-Za-z0-9.\-\[\]:]+:[0-9]+/?)?$`).MatchString,
			},
			"domain": {Takes: "a domain, for example example.org", Right: regexp.MustCompile(`^[A-Za-z0-9.-]*$`).MatchString},
		},
	}
}

// Where says where a setting was written, for errors that show only
// when the setting is used: "/etc/slurmbridge/slurmbridge.yaml:12: policy",
// "SLURMBRIDGE_POLICY", "--policy", or its bare name where it is the default.
func (c *Config) Where(key string) string {
	if w, ok := c.places[key]; ok {
		return w
	}
	return key
}

// Default returns the settings of an empty file.
func Default() *Config {
	c := &Config{}
	if _, err := settings.Load("", c, settings.Source{Defaults: etc.Settings, Rules: source(nil).Rules}); err != nil {
		panic(err) // there is nothing to read
	}
	c.GPUTypes = map[string]rlcore.GPUSpec{}
	return c
}

// Check returns what is wrong with a value of a setting, nil = nothing. The error continues
// a line that begins with the setting's name, which must exist.
func Check(name string, value any) error { return settings.Check[Config](name, value) }

// Load reads file, the environment and flags (nil = none; --client-config overrules client_config) afresh and returns
// the settings that result. It keeps nothing and changes nothing, so a reload that fails leaves the caller with what it
// had. file "" means DefaultFile where there is one. Each mistake is a line that names the place and the setting.
func Load(file string, flags *pflag.FlagSet) (*Config, error) {
	c := &Config{}
	var err error
	if c.File, err = usable(file); err != nil {
		return nil, err
	}
	if c.places, err = settings.Load(c.File, c, source(flags)); err != nil {
		return nil, errors.New(strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	if c.GPUTypes, err = c.cards(); err == nil {
		err = c.agree()
	}
	c.Adopt = complete(c.Adopt)
	if err != nil && c.File != "" {
		err = fmt.Errorf("%s: %w", c.File, err)
	}
	if err != nil {
		return nil, err
	}
	return c, nil
}

// usable returns the file to read, "" = none is named, and there is no DefaultFile.
func usable(file string) (string, error) {
	named := file != ""
	if !named {
		file = DefaultFile
	}
	info, err := os.Stat(file)
	switch {
	case err != nil && !named && errors.Is(err, fs.ErrNotExist):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("configuration can't be read: %w", err)
	case !info.Mode().IsRegular():
		return "", fmt.Errorf("configuration can't be read: %s is no file", file)
	case info.Mode().Perm()&0o002 != 0:
		return "", fmt.Errorf("%s is writable by all users: chmod o-w it", file)
	}
	return file, nil
}

// GateFile is where job_submit.lua reads which job is the gate.
func (c *Config) GateFile() string { return filepath.Join(c.RunDir, "gate") }

// WakeFile is where job_submit.lua and EpilogSlurmctld write a line to make the bridge poll.
func (c *Config) WakeFile() string { return filepath.Join(c.RunDir, "wake") }

// agree checks what one setting alone can't show.
func (c *Config) agree() error {
	if c.Poll > c.Lease/2 {
		return fmt.Errorf("poll %s is more than half the lease of %s: the gate would open between two polls",
			settings.Short(c.Poll), settings.Short(c.Lease))
	}
	for _, p := range c.IncludePartitions {
		if slices.Contains(c.ExcludePartitions, p) {
			return fmt.Errorf("partition %q is both in include_partitions and in exclude_partitions", p)
		}
	}
	return nil
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
