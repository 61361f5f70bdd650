package config

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/etc"
	"github.com/slurmbridge/slurmbridge/etc/settings"
	"github.com/slurmbridge/slurmbridge/rlcore"
)

func write(t *testing.T, text string) string {
	t.Helper()
	p := filepath.Join(t.TempDir(), "slurmbridge.yaml")
	must.OK(t, os.WriteFile(p, []byte(text), 0o600))
	return p
}

// etc/slurmbridge.yaml describes each setting, names the cards, and gives the core's defaults.
func TestSettingsFile(t *testing.T) {
	got := must.Get(Load(write(t, string(etc.Settings)), nil))(t)
	if c := Default(); c.Grace != rlcore.DefaultGrace ||
		c.MaxSlowdown != rlcore.DefaultMaxSlowdown ||
		c.MaxDelay != rlcore.DefaultMaxDelayS*time.Second || got.MaxDelay != c.MaxDelay {
		t.Errorf("the core has other defaults than %+v", c)
	}
	documented := map[string]bool{}
	for _, s := range settings.Documented(etc.Settings) {
		documented[s.Name] = true
		if len(s.Doc) < 20 || !strings.HasSuffix(s.Doc, ".") && s.Name != "adopt" && s.Name != "gpu_types" {
			t.Errorf("%s means %q", s.Name, s.Doc)
		}
	}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Config]()) {
		if name := f.Tag.Get("mapstructure"); name != "" && !documented[name] {
			t.Errorf("the file lacks %s", name)
		}
	}
	text := strings.Join(strings.Fields(strings.ReplaceAll(string(etc.Settings), "#", "")), " ")
	var known []string
	for i := range cards {
		known = append(known, cards[i].name)
	}
	must.Contain(t, text, "Known are "+strings.Join(known, ", ")+".", "the file")
}

func TestEachPlaceOverrulesTheOneBefore(t *testing.T) {
	file := write(t, "lease: 90s\nmax_group: 7\nmode: active\nretry_alone: false\ngrace: 2\n"+
		"include_partitions: [gpu, long]\nmax_slowdown: 1.2\n")
	t.Setenv("SLURMBRIDGE_MAX_GROUP", "8")
	t.Setenv("SLURMBRIDGE_SERVER", "head:1")
	t.Setenv("SLURMBRIDGE_RECORD_USERS", "alice, bob")
	fs := pflag.NewFlagSet("t", pflag.ContinueOnError)
	fs.String("server", "", "")
	fs.String("policy", "", "")
	must.OK(t, fs.Parse([]string{"--server=head:2", "--policy", "exclusive"}))
	got := must.Get(Load(file, fs))(t)
	for key, place := range map[string]string{
		"lease": file + ":1: lease", "max_group": "SLURMBRIDGE_MAX_GROUP", "server": "--server",
		"poll": "poll",
	} {
		must.Equal(t, got.Where(key), place, "where %s was written", key)
	}
	got.places = nil
	want := Default()
	want.File, want.Lease, want.MaxGroup, want.Mode, want.RetryAlone, want.Grace = file, 90*time.Second, 8, "active", false, 2
	want.IncludePartitions, want.RecordUsers = []string{"gpu", "long"}, []string{"alice", "bob"}
	want.MaxSlowdown, want.Policy, want.Server = 1.2, "exclusive", "head:2"
	must.Equal(t, got, want)
}

// Every mistake is one line that says where and what.
func TestEveryMistakeIsOneLine(t *testing.T) {
	for text, want := range map[string]string{
		"leese: 60s":                           `there is no setting "leese"; did you mean "lease"?`,
		"rundir: /run/g":                       `there is no setting "rundir"; did you mean "run_dir"?`,
		"max-delay: 5m":                        `there is no setting "max-delay"; did you mean "max_delay"?`,
		"colour: blue":                         `there is no setting "colour"; the settings are adopt, adopt_delay,`,
		"colour:":                              `there is no setting "colour"`,
		"cluster: {bin_dir: /usr/bin}":         `there is no setting "cluster"`,
		"lease: 90s\n---\nmode: shadow":        `it has several documents`,
		"lease: 60":                            `lease is 60, but takes a duration such as 60s`,
		"lease: sixty":                         `lease is "sixty", but takes a duration such as 60s`,
		"lease: 5s":                            `lease is 5s, but takes 20s to 1h`,
		"poll: 45s":                            `poll 45s is more than half the lease of 1m`,
		"max_group: 17":                        `max_group is 17, but takes 1 to 16`,
		"max_group: 4.5":                       `max_group is 4.5, but takes a whole number`,
		"max_group: [5]":                       `max_group is [5], but takes a whole number`,
		"extend_limit: perhaps":                `extend_limit is "perhaps", but takes true or false`,
		"mode: Active":                         `mode is "Active", but takes active or shadow`,
		"mixed_partitions: yes":                `mixed_partitions is "yes", but takes auto or share`,
		"policy: ../dqn":                       `policy is "../dqn", but takes a policy's name, or the path`,
		"policy: {a: b}":                       `policy is map[a:b], but takes text`,
		"memory_margin: .nan":                  `memory_margin is .nan, but takes a number`,
		"memory_margin: 0":                     `memory_margin is 0, but takes 0.01 to 0.5`,
		"max_slowdown: 0.5":                    `max_slowdown is 0.5, but takes 1 to 100, or 0`,
		"listen: 9797":                         `listen is 9797, but takes text`,
		"listen: localhost":                    `listen is "localhost", but takes host:port`,
		"listen: \":99999\"":                   `listen is ":99999", but takes host:port`,
		"database: slurmbridge.db":             `database is "slurmbridge.db", but takes a path from the root`,
		"run_dir: \"\"":                        `run_dir is "", but takes a path from the root`,
		"record_users: [root, 3]":              `record_users.2 is 3, but takes text`,
		"include_partitions: {a: b}":           `include_partitions is map[a:b], but takes a list of names`,
		"gpu_types: [a]":                       `gpu_types is [a], but takes a block`,
		"gpu_types: {k: 12}":                   `gpu_types.k is 12, but takes a block of mem_mib`,
		"gpu_types: {k: {same_user: true}}":    `gpu_types.k lacks mem_mib`,
		"gpu_types: {k: {mem: 1}}":             `gpu_types.k: there is no setting "mem"; did you mean "mem_mib"?`,
		"gpu_types: {k: {mem_mib: lots}}":      `gpu_types.k.mem_mib is "lots", but takes a number`,
		"gpu_types: {k: {mem_mib: -4}}":        `gpu_types.k.mem_mib is -4, but takes 1 to`,
		"gpu_types: {t4: {max_clients: 2000}}": `gpu_types.t4.max_clients is 2000, but takes 0 to 1000`,
		"include_partitions: [a]\nexclude_partitions: [b, a]": `partition "a" is both in include_partitions`,
		"adopt: {partition: gpu}":                             `adopt is map[partition:gpu], but takes a list of blocks`,
		"adopt: [gpu]":                                        `adopt.1 is "gpu", but takes a block of partition, account,`,
		"adopt:\n- {partition: gpu}\n- {partitoin: gpu}":      `:3: adopt.2: there is no setting "partitoin"; did you mean "partition"?`,
		"adopt:\n- {partition: a}\n- {account: [a, b c]}":     `:3: adopt.2.account has "b c", but takes letters`,
		"adopt:\n- {user: []}":                                `adopt.1.user names nothing: leave it out for any`,
		"adopt:\n- {max_slowdown: 0}":                         `adopt.1.max_slowdown is 0, but takes 1 to 100`,
		"lease: 60s\n\npoll: fast":                            `:3: poll is "fast"`,
		"lease: 60s\nlease: 90s":                              `already defined`,
		"lease: 60s\n\tpoll: 5s":                              `line 2`,
		"just words":                                          `cannot unmarshal`,
		"- lease":                                             `cannot unmarshal`,
	} {
		file := write(t, text)
		c, err := Load(file, nil)
		switch {
		case err == nil:
			t.Errorf("%q was taken: %+v", text, c)
		case !strings.Contains(err.Error(), want), !strings.HasPrefix(err.Error(), file+":"),
			strings.Contains(err.Error(), "\n"), strings.Count(err.Error(), " yaml: ") > 1:
			t.Errorf("%q:\n  %v\nwant in one line, after the file's name:\n  %s", text, err, want)
		}
	}
}

func TestEmptyFileAndValuesLeftOut(t *testing.T) {
	for _, text := range []string{"", "# nothing\n", "lease:\ngpu_types:\n"} {
		c, err := Load(write(t, text), nil)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		must.Equal(t, c.Lease, 60*time.Second, "%q: lease", text)
	}
}

func TestLoadKeepsNothing(t *testing.T) {
	file := write(t, "max_group: 3\nexclude_partitions: [a]\ngpu_types: {x: {mem_mib: 100}}")
	a := must.Get(Load(file, nil))(t)
	must.OK(t, os.WriteFile(file, []byte("max_group: 4"), 0o600))
	b := must.Get(Load(file, nil))(t)
	if a.MaxGroup != 3 || b.MaxGroup != 4 || len(a.ExcludePartitions) != 1 || len(b.ExcludePartitions) != 0 ||
		len(b.GPUTypes) != 0 {
		t.Errorf("a %+v\nb %+v", a, b)
	}
}

func TestCardsThatTheSettingsAdd(t *testing.T) {
	c, err := Load(write(t, "gpu_types:\n  MyCard: {mem_mib: 24576, max_clients: 48, same_user: false}\n"+
		"  A100: {same_user: no, sharing: time-slice}\n  3090: {mem_mib: 1000, memory_limits: false}\n  "+
		"nvidia_a30_1g.6gb: {mem_mib: 5836}\n"), nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]rlcore.GPUSpec{
		"titanxp": rlcore.TitanXp,
		"TitanXp": rlcore.TitanXp,
		"mycard":  {Model: "mycard", MemMiB: 24576, MaxClients: 48},
		"a100":    {Model: "a100", MemMiB: 40340, PCIeMBps: 64000, MaxClients: 48, MemLimits: true, Sharing: "time-slice"},
		"3090":    {Model: "3090", MemMiB: 1000, PCIeMBps: 64000, MaxClients: 48, SameUser: true},
		"nvidia_a100-sxm4-80gb": {
			Model: "a100-80gb", MemMiB: 80994, PCIeMBps: 64000, MaxClients: 48, SameUser: true,
			MemLimits: true,
		},
		"tesla_v100-pcie-32gb": {
			Model: "v100-32gb", MemMiB: 32480, PCIeMBps: 32000, MaxClients: 48, SameUser: true,
			MemLimits: true,
		},
		"nvidia_a30_1g.6gb": {Model: "nvidia_a30_1g.6gb", MemMiB: 5836, SameUser: true},
	} {
		got, ok := c.Spec(name)
		if !ok || got != want {
			t.Errorf("%s: %+v %v, want %+v", name, got, ok, want)
		}
	}
	for _, name := range []string{"", "radeon", "a1000"} {
		if got, ok := c.Spec(name); ok {
			t.Errorf("%q was taken for %+v", name, got)
		}
	}
}

// Two cards must not answer to one name.
func TestCardNamesDiffer(t *testing.T) {
	seen := map[string]string{}
	for _, c := range cards {
		mine := map[string]bool{plain(c.name): true}
		for _, a := range c.also {
			mine[plain(a)] = true
		}
		for name := range mine {
			if other, ok := seen[name]; ok {
				t.Errorf("%s is %s and %s", name, other, c.name)
			}
			seen[name] = c.name
		}
		if c.memMiB <= 0 || c.pcie <= 0 || c.clients <= 0 {
			t.Errorf("%s lacks a figure: %+v", c.name, c)
		}
	}
}

// Whatever the file holds, Load answers with settings in range or with one line.
func FuzzLoad(f *testing.F) {
	f.Add(string(etc.Settings))
	f.Add("lease: 60s\nmax_group: 5\n")
	f.Add("gpu_types: {a: {mem_mib: 5}}")
	f.Add("a: &a [*a]")
	f.Add("? {}\n: x")
	f.Add("lease: !!binary aGVsbG8=")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := Load(write(t, text), nil)
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("more than a line: %q", err)
			}
			return
		}
		if c.MaxGroup < 1 || c.MaxGroup > 16 || c.Lease < 20*time.Second || c.Poll > c.Lease/2 || !(c.MemoryMargin > 0) {
			t.Errorf("out of range: %+v", c)
		}
	})
}
