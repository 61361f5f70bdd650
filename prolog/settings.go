package prolog

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/viper"

	"github.com/slurmbridge/slurmbridge/prolog/credential"
)

// DefaultSettings is the file of a node's settings. It need not exist.
const DefaultSettings = "/etc/slurmbridge/node.yaml"

// Settings are a node's.
type Settings struct {
	RunDir     string   // where hooks and agent meet
	MPSControl string   // path of nvidia-cuda-mps-control
	MPSEnv     []string // NAME=value, added to the daemons' environment
	Multiuser  bool     // one MPS server for all users (Volta and later)
	Sharing    string   // auto, mps or shard
	Percentage string   // thread percentage: off, share or generous
	Memory     string   // memory limit: off, share, generous or profile (auto: that, where there is a controller)
	Controller string   // the controller's address, "" = none
	// ControllerConfig is the file that says how the controller is trusted, "" = none.
	ControllerConfig string
	MungeSocket      string // "" = munge's own default
	KeyFile          string // of the key that proves who asks, "" = MUNGE does
	JobMap           string // dcgm-exporter's job map, "" = none
	FrameworkEnv     bool   // Hook's
}

// Keys of the settings' file with their defaults.
var defaults = map[string]any{
	"run_dir": DefaultRunDir, "mps_control": "/usr/bin/" + controlName, "mps_env": []string{}, "multiuser_server": false,
	"sharing": "auto", "thread_percentage": "off", "memory_limit": "auto", "job_map": "",
	"framework_env": true,
	"controller":    "", "controller_config": "", "munge_socket": "", "key_file": "",
}

// Load reads a settings file; a missing one means the defaults. The settings are usable despite an
// error: a job must start all the same, with the default for an invalid setting.
func Load(path string) (Settings, error) {
	v := viper.New()
	for k, d := range defaults {
		v.SetDefault(k, d)
	}
	v.SetConfigFile(path)
	v.SetConfigType("yaml")
	var errs []error
	if err := v.ReadInConfig(); err != nil && !errors.Is(err, os.ErrNotExist) {
		errs = append(errs, fmt.Errorf("%s: %w", path, err))
	}
	for _, k := range v.AllKeys() {
		if _, ok := defaults[k]; !ok {
			errs = append(errs, fmt.Errorf("%s: there is no setting %.64q", path, k))
		}
	}
	s := Settings{
		RunDir: v.GetString("run_dir"), MPSControl: v.GetString("mps_control"), MPSEnv: v.GetStringSlice("mps_env"),
		Multiuser: v.GetBool("multiuser_server"), Sharing: v.GetString("sharing"), Percentage: v.GetString("thread_percentage"),
		Memory: v.GetString("memory_limit"), JobMap: v.GetString("job_map"), FrameworkEnv: v.GetBool("framework_env"),
		Controller: v.GetString("controller"), ControllerConfig: v.GetString("controller_config"), MungeSocket: v.GetString("munge_socket"),
		KeyFile: v.GetString("key_file"),
	}
	for _, c := range []struct {
		key   string
		value *string
		ok    func(string) bool
	}{
		{"run_dir", &s.RunDir, filepath.IsAbs},
		{"sharing", &s.Sharing, oneOf("auto", "mps", "shard")},
		{"thread_percentage", &s.Percentage, oneOf("off", "share", "generous")},
		{"memory_limit", &s.Memory, oneOf("auto", "off", "share", "generous", "profile")},
		{"job_map", &s.JobMap, absOrNone},
		{"controller_config", &s.ControllerConfig, absOrNone},
		{"munge_socket", &s.MungeSocket, absOrNone},
		{"key_file", &s.KeyFile, absOrNone},
	} {
		if !c.ok(*c.value) {
			errs = append(errs, fmt.Errorf("%s: %s can't be %.64q", path, c.key, *c.value))
			*c.value, _ = defaults[c.key].(string)
		}
	}
	if _, err := Addresses(s.Controller); s.Controller != "" && err != nil {
		// Not repeated: it may hold a password.
		errs = append(errs, fmt.Errorf("%s: controller is no address such as http://head:9797", path))
		s.Controller = ""
	}
	if s.Memory == "auto" {
		s.Memory = "off"
		if s.Controller != "" {
			s.Memory = "profile"
		}
	}
	if s.Memory == "profile" && s.Controller == "" {
		errs = append(errs, fmt.Errorf("%s: memory_limit can't be \"profile\" without a controller to ask", path))
		s.Memory = "off"
	}
	return s, errors.Join(errs...)
}

func absOrNone(p string) bool { return p == "" || filepath.IsAbs(p) }

func oneOf(words ...string) func(string) bool {
	return func(s string) bool { return slices.Contains(words, s) }
}

// HasMPS reports whether the MPS daemon's control program is there to be run.
func (s *Settings) HasMPS() bool {
	info, err := os.Stat(s.MPSControl)
	return err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0
}

// Hook makes the node's hooks. get is os.Getenv.
func (s Settings) Hook(get func(string) string) *Hook {
	h := &Hook{Dir: Dir(s.RunDir), Percentage: s.Percentage, MemoryLimit: s.Memory, JobMap: s.JobMap, Shard: s.Sharing == "shard", FrameworkEnv: s.FrameworkEnv, Now: time.Now}
	if s.Controller != "" {
		h.Controller = &Controller{URL: s.Controller, Config: s.ControllerConfig, Credentials: credential.Choose(s.KeyFile, s.MungeSocket).Nodes}
	}
	if s.Sharing == "auto" {
		h.Shard = sharesShards(get("SLURM_CONF"))
	}
	// Without the list a GPU's index counts.
	h.Cards, _ = h.Dir.Cards("")
	if s.HasMPS() {
		h.MPS = &MPS{Dir: h.Dir, Control: s.MPSControl, Cards: h.Cards, Multiuser: s.Multiuser, Env: s.MPSEnv}
	}
	return h
}

// sharesShards reports whether slurm.conf has GPUs shared by gres/shard. Slurm
// names the file to its hooks; they may read it, but run none of Slurm's commands.
func sharesShards(conf string) bool {
	if conf == "" {
		conf = "/etc/slurm/slurm.conf"
	}
	f, err := os.Open(filepath.Clean(conf))
	if err != nil {
		return false
	}
	defer f.Close()
	return gresTypesHave(f, "shard")
}

// gresTypesHave looks for a type in the GresTypes lines of a slurm.conf.
func gresTypesHave(conf io.Reader, kind string) bool {
	sc := bufio.NewScanner(io.LimitReader(conf, 4<<20))
	sc.Buffer(nil, 64<<10)
	for sc.Scan() {
		line, _, _ := strings.Cut(sc.Text(), "#")
		key, value, ok := strings.Cut(line, "=")
		if !ok || !strings.EqualFold(strings.TrimSpace(key), "GresTypes") {
			continue
		}
		for t := range strings.SplitSeq(value, ",") {
			if strings.EqualFold(strings.TrimSpace(t), kind) {
				return true
			}
		}
	}
	return false
}
