package config

import (
	"cmp"
	"fmt"
	"regexp"

	"github.com/slurmbridge/slurmbridge/prolog/settings"
	"github.com/slurmbridge/slurmbridge/slurmbridge/adopt"
)

// AdoptRule is a rule as adopt writes it; see adopt.Rule.
type AdoptRule struct {
	Partition   []string `mapstructure:"partition" is:"rule names"`
	Account     []string `mapstructure:"account" is:"rule names"`
	QOS         []string `mapstructure:"qos" is:"rule names"`
	User        []string `mapstructure:"user" is:"rule names"`
	Reservation []string `mapstructure:"reservation" is:"rule names"`
	Never       bool     `mapstructure:"never"`
	From        string   `mapstructure:"from" is:"one-gpu or per-node"`
	MaxSlowdown float64  `mapstructure:"max_slowdown" is:"1 to 100"`
	Grace       float64  `mapstructure:"grace" is:"0.01 to 100, or 0"`
}

// ruleNames are a partition's, an account's, a QOS', a user's or a reservation's: anything else could not be a word of
// the gate file.
var ruleNames = settings.Rule{
	Takes: "letters, digits, '_', '.', '@', '+' and '-'", Some: true,
	Right: regexp.MustCompile(`^[A-Za-z0-9_.@+-]{1,128}$`).MatchString,
}

func rulesOf(written []AdoptRule) (out []adopt.Rule) {
	for _, w := range written {
		out = append(out, adopt.Rule{
			Partitions: w.Partition, Accounts: w.Account, QOS: w.QOS, Users: w.User, Reservations: w.Reservation, Never: w.Never,
			PerNode: w.From == "per-node", MaxSlowdown: cmp.Or(w.MaxSlowdown, adopt.DefaultMaxSlowdown), Grace: w.Grace,
		})
	}
	return out
}

// ReadRules reads a file of rules: an adopt section by itself.
func ReadRules(file string) ([]adopt.Rule, error) {
	var only struct {
		Adopt []AdoptRule `mapstructure:"adopt"`
	}
	if _, err := settings.Load(file, &only, settings.Source{
		Defaults: []byte("adopt: []"),
		Rules:    source(nil).Rules,
	}); err != nil {
		return nil, fmt.Errorf("rules: %w", err)
	}
	if len(only.Adopt) == 0 {
		return nil, fmt.Errorf("%s: it has no rules (a list below adopt)", file)
	}
	return rulesOf(only.Adopt), nil
}

// AdoptPolicy is what the settings say about adoption, nil = nothing is adopted. uid returns the number of a user.
func (c *Config) AdoptPolicy(uid func(name string) (uint32, bool)) *adopt.Policy {
	if len(c.Adopt) == 0 {
		return nil
	}
	return &adopt.Policy{
		Rules: c.Adopt, Active: c.AdoptMode == "active", Percent: c.AdoptPercent, Charge: c.AdoptCharge == "shares",
		Delay: c.AdoptDelay, OutFile: c.AdoptOptOut, UID: uid,
	}
}
