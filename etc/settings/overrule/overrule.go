// Package overrule reads what overrules a settings file: variables, then flags. The hooks, which start with each job,
// do without it.
package overrule

import (
	"os"
	"strings"

	"github.com/spf13/pflag"
	"github.com/spf13/viper"
)

// By returns what reads a setting's variable (SLURMBRIDGE_LEASE with env SLURMBRIDGE), or its flag (--lease; flags may
// be nil), and where that was written; nil = neither is there.
func By(env string, flags *pflag.FlagSet) func(key string) (value any, place string) {
	v := viper.New()
	v.SetEnvPrefix(env)
	v.AutomaticEnv()
	return func(key string) (any, string) {
		place := env + "_" + strings.ToUpper(key)
		if os.Getenv(place) == "" {
			place = ""
		}
		if flags != nil {
			if f := flags.Lookup(strings.ReplaceAll(key, "_", "-")); f != nil && f.Changed {
				place = "--" + f.Name
				_ = v.BindPFlag(key, f) // there is a flag
			}
		}
		return v.Get(key), place
	}
}
