package prolog

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/slurmbridge/slurmbridge/etc"
	"github.com/slurmbridge/slurmbridge/etc/settings"
	"github.com/slurmbridge/slurmbridge/slurmbridge/credential"
)

// DefaultSettings is the file of a node's settings. It need not exist.
const DefaultSettings = "/etc/slurmbridge/node.yaml"

// Settings are the settings of a node, documented in etc/node.yaml.
type Settings struct {
	RunDir           string   `mapstructure:"run_dir" is:"path"`
	MPSControl       string   `mapstructure:"mps_control"`
	MPSEnv           []string `mapstructure:"mps_env"` // NAME=value
	Multiuser        bool     `mapstructure:"multiuser_server"`
	Sharing          string   `mapstructure:"sharing" is:"auto, mps or shard"`
	Memory           string   `mapstructure:"memory_limit" is:"auto or off"`
	Controller       string   `mapstructure:"controller"`
	ControllerConfig string   `mapstructure:"controller_config" is:"path or none"`
	MungeSocket      string   `mapstructure:"munge_socket" is:"path or none"`
	KeyFile          string   `mapstructure:"key_file" is:"path or none"`
	FrameworkEnv     bool     `mapstructure:"framework_env"`
}

// Load reads a settings file; without the file all settings have their defaults. The settings are usable even if Load
// returns an error, because the job must start: an invalid setting has its default.
func Load(path string) (Settings, error) {
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		path = ""
	}
	s := Settings{}
	_, err := settings.Load(path, &s, settings.Source{Defaults: etc.Node})
	if _, wrong := Addresses(s.Controller); s.Controller != "" && wrong != nil {
		// Not repeated: it may hold a password.
		err = errors.Join(err, fmt.Errorf("%s: controller is no address such as http://head:9797", path))
		s.Controller = ""
	}
	return s, err
}

// HasMPS reports whether MPS's two programs can be run: the control daemon, and the server where the daemon looks for
// it.
func (s *Settings) HasMPS() bool {
	runs := func(path string) bool {
		info, err := os.Stat(path)
		return err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0
	}
	return runs(s.MPSControl) &&
		slices.ContainsFunc(serverPath(s.MPSControl), func(dir string) bool { return runs(filepath.Join(dir, serverName)) })
}

// Hook returns the node's hooks with a deadline for each. get is os.Getenv.
func (s Settings) Hook(get func(string) string, deadline time.Duration) *Hook {
	h := &Hook{
		Dir: Dir(s.RunDir), Shard: s.Sharing == "shard", FrameworkEnv: s.FrameworkEnv, Now: time.Now,
	}
	if s.Controller != "" && s.Memory == "auto" {
		h.Controller = &Controller{
			URL: s.Controller, Config: s.ControllerConfig, Timeout: deadline / 5,
			Credentials: credential.Choose(s.KeyFile, s.MungeSocket).Nodes,
		}
	}
	site := readSite(get("SLURM_CONF"), get("SLURMD_NODENAME"))
	if s.Sharing == "auto" {
		h.Shard = site.shard
	}
	h.Constrains = site.constrains
	h.HidesMemory = site.hidesMemory
	h.Contains = site.contains
	// Without the list Slurm's numbers are used as they are.
	h.Cards, _ = h.Dir.Cards("")
	site.number(h.Cards, "")
	if s.HasMPS() {
		h.MPS = &MPS{
			Dir: h.Dir, Control: s.MPSControl, Cards: h.Cards, Multiuser: s.Multiuser, Env: s.MPSEnv, Answer: deadline * 3 / 10,
		}
	}
	return h
}

// Uncertain returns how many of a node's GPU numbers in Slurm map to no card for certain.
func (s Settings) Uncertain(node string) int {
	cards, _ := Dir(s.RunDir).Cards("")
	site := readSite(os.Getenv("SLURM_CONF"), node)
	return site.number(cards, "")
}
