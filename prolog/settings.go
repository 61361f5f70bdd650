package prolog

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/slurmbridge/slurmbridge/prolog/credential"
)

// DefaultSettings is the file of a node's settings. It need not exist.
const DefaultSettings = "/etc/slurmbridge/node.yaml"

// Settings are a node's, by their keys in the file.
type Settings struct {
	RunDir     string   `yaml:"run_dir"`           // where hooks and agent meet
	MPSControl string   `yaml:"mps_control"`       // path of nvidia-cuda-mps-control
	MPSEnv     []string `yaml:"mps_env"`           // NAME=value, added to the daemons' environment
	Multiuser  bool     `yaml:"multiuser_server"`  // one MPS server for all users (Volta and later)
	Sharing    string   `yaml:"sharing"`           // auto, mps or shard
	Percentage string   `yaml:"thread_percentage"` // off, share or generous
	// Memory is the memory limit: off, share, generous or profile (auto: that, where there is a controller).
	Memory     string `yaml:"memory_limit"`
	Controller string `yaml:"controller"` // its address, "" = none
	// ControllerConfig is the file that says how the controller is trusted, "" = none.
	ControllerConfig string `yaml:"controller_config"`
	MungeSocket      string `yaml:"munge_socket"` // "" = munge's own default
	KeyFile          string `yaml:"key_file"`     // of the key that proves who asks, "" = MUNGE does
	JobMap           string `yaml:"job_map"`      // dcgm-exporter's, "" = none
	FrameworkEnv     bool   `yaml:"framework_env"`
}

var defaults = Settings{
	RunDir: DefaultRunDir, MPSControl: "/usr/bin/" + controlName, Sharing: "auto", Percentage: "off", Memory: "auto", FrameworkEnv: true,
}

// Load reads a settings file; a missing one means the defaults. The settings are usable despite an
// error: a job must start all the same, with the default for an invalid setting.
func Load(path string) (Settings, error) {
	s, all := defaults, map[string]any{}
	text, err := os.ReadFile(filepath.Clean(path))
	if err == nil {
		err = errors.Join(yaml.Unmarshal(text, &s), yaml.Unmarshal(text, &all))
	}
	var errs []error
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		errs = append(errs, fmt.Errorf("%s: %w", path, err))
	}
	for k := range all {
		if !slices.Contains(keys(), k) {
			errs = append(errs, fmt.Errorf("%s: there is no setting %.64q", path, k))
		}
	}
	for _, c := range []struct {
		key     string
		value   *string
		instead string
		ok      func(string) bool
	}{
		{"run_dir", &s.RunDir, defaults.RunDir, filepath.IsAbs},
		{"sharing", &s.Sharing, "auto", oneOf("auto", "mps", "shard")},
		{"thread_percentage", &s.Percentage, "off", oneOf("off", "share", "generous")},
		{"memory_limit", &s.Memory, "auto", oneOf("auto", "off", "share", "generous", "profile")},
		{"job_map", &s.JobMap, "", absOrNone},
		{"controller_config", &s.ControllerConfig, "", absOrNone},
		{"munge_socket", &s.MungeSocket, "", absOrNone},
		{"key_file", &s.KeyFile, "", absOrNone},
	} {
		if !c.ok(*c.value) {
			errs = append(errs, fmt.Errorf("%s: %s can't be %.64q", path, c.key, *c.value))
			*c.value = c.instead
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

func keys() (out []string) {
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Settings]()) {
		out = append(out, f.Tag.Get("yaml"))
	}
	return out
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
	site := readSite(get("SLURM_CONF"), get("SLURMD_NODENAME"))
	if s.Sharing == "auto" {
		h.Shard = site.shard
	}
	h.Constrains = site.constrains
	// Without the list Slurm's number has to do.
	h.Cards, _ = h.Dir.Cards("")
	site.number(h.Cards, "")
	if s.HasMPS() {
		h.MPS = &MPS{Dir: h.Dir, Control: s.MPSControl, Cards: h.Cards, Multiuser: s.Multiuser, Env: s.MPSEnv}
	}
	return h
}

// Uncertain is how many of Slurm's GPUs of a node mean none of its cards for sure.
func (s Settings) Uncertain(node string) int {
	cards, _ := Dir(s.RunDir).Cards("")
	site := readSite(os.Getenv("SLURM_CONF"), node)
	return site.number(cards, "")
}
