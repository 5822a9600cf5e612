"""How a module at a resolution becomes a file. Part of the vitpe-deploy distribution.

``exporters`` is a generic import name; :data:`DISTRIBUTION` lets the command line notice when
another package of that name shadows this one.
"""

DISTRIBUTION = "vitpe-deploy"
